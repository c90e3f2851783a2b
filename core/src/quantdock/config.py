"""QuantizationConfig: one checkpoint dialect, from its JSON to a decision for each layer.

A plugin that gives a name another meaning subclasses the core's config and overrides what
differs, usually ``scheme_for``.

>>> from quantdock.configs.fp8 import Fp8Config
>>> config = Fp8Config.from_config({"quant_method": "fp8", "ignored_layers": ["lm_head"]})
>>> from quantdock.schemes import LayerFacts
>>> str(config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.up_proj")).scheme)
'fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic'
>>> config.scheme_for(LayerFacts(prefix="lm_head", kind="head")).kind
'unquantized'
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from quantdock.errors import ConfigError
from quantdock.schemes import UNSTATED, Decision, KVCacheDecision, KVCacheSpec, LayerFacts, Scheme

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from quantdock.dispatch import Dispatch
    from quantdock.kernel import Kernel
    from quantdock.method import QuantizeMethodBase
    from quantdock.methods.slot import Slot
    from quantdock.numerics.canonical import CanonicalWeight
    from quantdock.platform import Platform


class QuantizationConfig(ABC):
    """What one method name means on one platform.

    Attributes:
        dispatch: the platform and kernels it is bound to; see ``bind``.
        packed_modules_mapping: fused module name -> names of its shards in the checkpoint.
        is_online: this instance quantizes a 16-bit checkpoint while loading it.
        kv_cache: what the checkpoint says of keys and values.
        repacked: which kernels run its layers: those that repack codes at load (True), the others
            (False), or any (None). What a class says holds where its name was asked for.
    """

    name: ClassVar[str]
    repacked: bool | None = None

    def __init__(self) -> None:
        self.dispatch: Dispatch | None = None
        self.is_online = False
        self.kv_cache: KVCacheDecision = UNSTATED
        self.packed_modules_mapping: dict[str, list[str]] = {}

    @classmethod
    def get_name(cls) -> str:
        """Return the method name."""
        return cls.name

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the config that the checkpoint's JSON block describes.

        Raises:
            ConfigError: a known field has an impossible value; the text names the field.
        """

    @classmethod
    def online(cls, ignore: Sequence[str] = (), choices: Mapping[str, str] | None = None) -> Self:
        """Return the config that quantizes a 16-bit checkpoint at load.

        Args:
            ignore: patterns of layers to leave as they are.
            choices: pattern -> online shorthand (or "none") for the layers it matches.
        Raises:
            ConfigError: this method needs a checkpoint that is already quantized.
        """
        raise ConfigError(
            f"{cls.name} cannot quantize a 16-bit checkpoint at load.",
            why=["its weights come from a quantizer with calibration or a layout of its own"],
            todo="Load a checkpoint that is already quantized with it, or choose an online method.",
        )

    @classmethod
    def claim(
        cls,
        config: Mapping[str, Any],
        user: str | None,
        platform: Platform,
        kernels: Sequence[Kernel] = (),
    ) -> str | None:
        """Return why this config takes over a checkpoint that names another method, or None.

        ``config`` is the checkpoint's block, ``user`` the user's method, ``kernels`` what the
        platform offers. A claim never beats an explicit user choice.
        """
        return None

    @classmethod
    def runs_with(cls, kernels: Sequence[Kernel]) -> bool:
        """Return whether a platform that offers ``kernels`` can run any checkpoint of this name."""
        return True

    @abstractmethod
    def scheme_for(self, facts: LayerFacts) -> Decision:
        """Return what this layer is: a scheme, unquantized because ..., or an error."""

    def weight_shape(self, scheme: Scheme, facts: LayerFacts) -> tuple[int, ...]:
        """Return the shape (N, K) of the weight that is stored for a layer, as ``facts`` show it.

        Experts that are stored in one tensor have a third dimension, the first. Empty where the
        headers do not show a shape. Dialects that pack or transpose their codes override this.
        """
        weight = (facts.stored or {}).get("weight")
        return weight.shape if weight is not None and len(weight.shape) > 1 else ()

    @abstractmethod
    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the tensors the checkpoint stores for one shard [n, k] of a layer."""

    @abstractmethod
    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the canonical weight; ``stored`` has one mapping (slot name -> tensor) a shard."""

    def explain_shift(self, steps: int) -> str:
        """Return which setting would be wrong if all weights were ``steps`` scales too large.

        Empty where none would: only dialects with several ways to write zero points know.
        """
        return ""

    def kv_cache_spec(self) -> KVCacheSpec | None:
        """Return how the checkpoint asks to keep keys and values; None: in the model's dtype."""
        spec = self.kv_cache.spec
        return None if spec is None else self.executed_kv_cache(spec)

    def executed_kv_cache(self, spec: KVCacheSpec) -> KVCacheSpec:
        """Return what is kept for ``spec``: itself, unless a platform's config overrides this."""
        return spec

    def decode_kv_scale(self, stored: Tensor, spec: KVCacheSpec | None = None) -> Tensor:
        """Return a stored KV-cache scale as the f32 multiplier of the codes this platform keeps.

        Args:
            spec: how they are kept, see ``executed_kv_cache``; None: as fp8_e4m3 is.
        """
        from quantdock.numerics import decode_scale

        return decode_scale(stored)

    def unmatched(self) -> tuple[str, ...]:
        """Return the entries of ignore lists and overrides that have matched no layer so far."""
        return ()

    def notes(self) -> tuple[str, ...]:
        """Return what a user should know of this checkpoint's settings, for the plan."""
        return ()

    def bind(self, dispatch: Dispatch) -> Self:
        """Return self, tied to a platform, its kernels and the user's policy."""
        self.dispatch = dispatch
        return self

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase:
        """Return the method of ``layer``; the signature is vLLM's and SGLang's.

        Raises:
            ConfigError: the config refuses the layer, and why.
        """
        from quantdock.methods.build import build_method

        return build_method(self, layer, prefix)

    def refuse(self, decision: Decision, facts: LayerFacts) -> None:
        """Raise if ``decision`` is an error.

        Raises:
            ConfigError: what is wrong with the layer, and where that is decided.
        """
        if decision.error:
            raise ConfigError(
                f"{self.name} cannot build {facts.prefix} ({facts.kind}).",
                why=[decision.because, f"decided by {decision.source}"],
                todo=decision.todo,
            )
