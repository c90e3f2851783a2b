"""mxfp4: experts in fp4 with one power-of-two scale for 32 columns, as gpt-oss stores them.

Its linear layers stay as they are: on most devices the name stands for experts alone. A platform
that means dense layers too rebinds it to a subclass with other ``quantized_kinds``.

>>> config = Mxfp4Config.from_config({"quant_method": "mxfp4"})
>>> str(config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.experts", kind="experts")).scheme)
'fp4_e2m1[1x32]:e8m0:even'
>>> config.scheme_for(LayerFacts(prefix="model.layers.0.self_attn.q_proj")).because
'mxfp4 stands for experts here; a linear layer stays in the dtype of the model'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from quantdock.configs.contradictions import Contradictions
from quantdock.configs.fields import Fields
from quantdock.configs.fp8 import IGNORE_FIELDS
from quantdock.configs.matcher import Entry, Matcher
from quantdock.configs.online import OnlineConfig
from quantdock.configs.stored import HEADERS
from quantdock.formats import DTYPES, EXPONENT_BYTES
from quantdock.methods.slot import Slot
from quantdock.schemes import Decision, LayerFacts, Scheme
from quantdock.schemes.shorthands import SHORTHANDS

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.numerics.canonical import CanonicalWeight

BLOCKS, SCALES = "weight_blocks", "weight_scales"
_GROUP, _GROUP_BYTES = 32, 16
_A = {
    "linear": "a linear layer",
    "embedding": "an embedding",
    "head": "a head",
    "attention": "attention",
    "experts": "an expert",
}
_MANY = {"linear": "linear layers", "experts": "experts"}


class Mxfp4Config(OnlineConfig):
    """A checkpoint that says ``mxfp4``, or 16-bit experts quantized to it at load.

    Attributes:
        quantized_kinds: the kinds of layer that the name stands for.
    """

    name = "mxfp4"
    online_schemes = SHORTHANDS["mxfp4"]
    quantized_kinds: ClassVar[frozenset[str]] = frozenset({"experts"})

    def __init__(
        self, *, ignored: Sequence[Entry[None]] = (), extra: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.extra = dict(extra or {})
        self._ignored = Matcher(ignored)
        self.contradictions = Contradictions(self.name)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the config of an mxfp4 checkpoint.

        Raises:
            ConfigError: a known field has an impossible value.
        """
        fields = Fields(config, cls.name)
        return cls(ignored=fields.names(*IGNORE_FIELDS, "ignore"), extra=fields.rest())

    def scheme_for(self, facts: LayerFacts) -> Decision:
        """Return the scheme of experts; other layers stay as they are."""
        stored = {key.rpartition(".")[2]: tensor for key, tensor in (facts.stored or {}).items()}
        listed = self._ignored.find(facts, self.packed_modules_mapping)
        if BLOCKS in stored:
            source = HEADERS
            if listed:
                what = f"stored with {BLOCKS}, though {listed.source} leaves it out"
                self.contradictions.add(facts.prefix, what)
        elif facts.kind not in self.quantized_kinds:
            meant = " and ".join(_MANY[kind] for kind in sorted(self.quantized_kinds))
            because = (
                f"{self.name} stands for {meant} here; "
                f"{_A[facts.kind]} stays in the dtype of the model"
            )
            return Decision.unquantized(because, self.name)
        elif self.is_online:
            return super().scheme_for(facts)
        elif (weight := stored.get("weight")) and DTYPES[weight.dtype].floating:
            return Decision.unquantized(f"the file stores it as {weight.dtype}", HEADERS)
        elif listed:
            return Decision.unquantized("the checkpoint lists it as unquantized", listed.source)
        else:
            source = f"quant_method = {self.name!r}"
        scheme = self.executed(self.online_schemes[0])
        return Decision.quantized(scheme, "the checkpoint says so of its experts", source)

    def weight_shape(self, scheme: Scheme, facts: LayerFacts) -> tuple[int, ...]:
        """Return the shape (N, K), or (experts, N, K), of the blocks that are stored."""
        blocks = (facts.stored or {}).get(BLOCKS)
        if blocks is None or len(blocks.shape) < 2:
            return super().weight_shape(scheme, facts)
        *stack, groups, size = blocks.shape
        return (*stack, groups * size * 2)

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the blocks of 16 bytes and their scales; or a 16-bit weight, where online."""
        if self.is_online:
            return super().slots(scheme, n, k, facts)
        groups = -(-k // _GROUP)
        return (
            Slot(name=BLOCKS, shapes=((n, groups, _GROUP_BYTES),), dtypes=("uint8",)),
            Slot(name=SCALES, shapes=((n, groups),), dtypes=EXPONENT_BYTES, col_tile=_GROUP),
        )

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the codes and scales as the file has them; or quantize, where online."""
        if self.is_online:
            return super().decode(scheme, stored, facts)
        from quantdock.numerics import CanonicalWeight, Segment, join, unpack_expert_blocks

        parts = []
        for tensors in stored:
            codes, scale = unpack_expert_blocks(tensors[BLOCKS], tensors[SCALES])
            segment = Segment(spec=scheme.weight, codes=codes, scale=scale)
            parts.append(CanonicalWeight(segments=(segment,)))
        return join(parts)

    def unmatched(self) -> tuple[str, ...]:
        """Return the entries of the ignore list that have matched no layer so far."""
        return (*super().unmatched(), *self._ignored.unmatched())

    def notes(self) -> tuple[str, ...]:
        """Return where the tensors decided against the JSON."""
        return (*super().notes(), *self.contradictions.notes)
