"""gptq: integer weights of 2, 3, 4 or 8 bits by groups of input columns, also in act-order.

>>> block = {"bits": 4, "group_size": 128, "sym": True, "desc_act": False,
...          "dynamic": {"-:.*router": {}, r".*\\.down_proj": {"bits": 8}}}
>>> config = GPTQConfig.from_config(block)
>>> str(config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.up_proj")).scheme)
'int4[1x128]'
>>> decision = config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.down_proj"))
>>> str(decision.scheme), decision.source
('int8[1x128]', "dynamic['.*\\\\\\\\.down_proj']")
>>> config.scheme_for(LayerFacts(prefix="model.layers.0.router")).kind
'unquantized'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from quantdock.configs.fields import Fields
from quantdock.configs.gptq_block import Override, read_dynamic, read_only, read_setting, read_zeros
from quantdock.configs.gptq_tensors import (
    CHECK,
    LAYOUT,
    ZeroStorage,
    decode_gptq,
    gptq_slots,
    stored_names,
)
from quantdock.configs.group_setting import GroupSetting
from quantdock.configs.header_check import Misfit
from quantdock.configs.integer_checkpoint import IntegerCheckpointConfig
from quantdock.configs.matcher import Entry, Match, Matcher
from quantdock.schemes import Decision, LayerFacts, Scheme, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.methods.slot import Slot
    from quantdock.numerics.canonical import CanonicalWeight

_UNNAMED = Match(value=None, source="modules_in_block_to_quantize, where no entry names it,")


class GPTQConfig(IntegerCheckpointConfig):
    """A checkpoint that says ``gptq``.

    Attributes:
        setting: how layers are encoded that no override names.
        zeros: how the file writes its zero points.
    """

    name: ClassVar[str] = "gptq"
    codes: ClassVar[str] = "qweight"
    repacked = False

    def __init__(
        self,
        setting: GroupSetting,
        *,
        zeros: ZeroStorage,
        dynamic: Iterable[Entry[Override]] = (),
        only: Sequence[Entry[None]] = (),
        ignored: Sequence[Entry[None]] = (),
        quantized_kinds: frozenset[str] = frozenset(),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            ignored=ignored, quantized_kinds=quantized_kinds, stated=str(setting), extra=extra
        )
        self.setting = setting
        self.zeros = zeros
        self._dynamic = Matcher(dynamic)
        self._only = Matcher(only)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the config of a GPTQ checkpoint.

        Raises:
            ConfigError: a field is missing or has an impossible value, or the file is in the
                layout of a kernel.
        """
        fields = Fields(config, cls.name)
        setting = read_setting(fields)
        return cls(
            setting,
            zeros=read_zeros(fields),
            dynamic=read_dynamic(fields, setting),
            only=read_only(fields),
            ignored=fields.names("modules_to_not_convert"),
            quantized_kinds=frozenset({"head"} if fields.flag("lm_head") else ()),
            extra=fields.rest(),
        )

    def scheme_for(self, facts: LayerFacts) -> Decision:
        """Return what the file makes of a layer; a ``dynamic`` entry comes before other lists."""
        override = self._dynamic.find(facts, self.packed_modules_mapping)
        listed = self._ignored.find(facts, self.packed_modules_mapping)
        if override is not None and (override.conflict or override.value is None):
            listed = Match(value=None, source=override.source, conflict=override.conflict)
        elif listed is None and override is None and not self._is_named(facts):
            listed = _UNNAMED
        return self.decide(facts, listed)

    def _is_named(self, facts: LayerFacts) -> bool:
        """Return whether a list of the layers to quantize names this one, or there is none."""
        if not self._only.entries or facts.kind not in ("linear", "experts"):
            return True
        return self._only.find(facts, self.packed_modules_mapping) is not None

    def usual(self, facts: LayerFacts) -> Decision:
        """Return the scheme of a layer that is quantized; headers say whether it has an index."""
        override = self._dynamic.find(facts, self.packed_modules_mapping)
        setting, source = self.setting, str(self.setting)
        if override is not None and override.value is not None:
            setting, source = override.value, override.source
        spec, names = setting.spec, stored_names(facts)
        if spec.act_order and names is not None and "g_idx" not in names:
            self.contradictions.add(facts.prefix, "stored without g_idx, though desc_act = True")
            spec = replace(spec, act_order=False)
        because = "the checkpoint says so" if names is None else "the file stores it as qweight"
        return Decision.quantized(Scheme(weight=spec), because, source)

    def misfit(self, scheme: Scheme, tensors: Mapping[str, StoredTensor]) -> Misfit | None:
        """Return why headers contradict ``scheme``, and which bits and group size they fit."""
        return CHECK.misfit(scheme.weight, tensors)

    def weight_shape(self, scheme: Scheme, facts: LayerFacts) -> tuple[int, ...]:
        """Return the (N, K) that the words stand for."""
        return LAYOUT.shape(scheme.weight, facts.stored or {})

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the codes, zero points and scales, and the index where one may be stored."""
        return gptq_slots(scheme, n, k, facts)

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the canonical weight; no value changes."""
        return decode_gptq(scheme, stored, facts, self.zeros, self.contradictions)

    def explain_shift(self, steps: int) -> str:
        """Return that zero points are written as the other version does, if weights show that.

        Of symmetric files loading finds out by itself.
        """
        if self.setting.sym or steps != (1 if self.zeros.v2 else -1):
            return ""
        other = "gptq" if self.zeros.v2 else "gptq_v2"
        return f"zero points are written as {other} has them, though {self.zeros.stated}"

    def unmatched(self) -> tuple[str, ...]:
        """Return the entries of all lists that have matched no layer so far."""
        return (*super().unmatched(), *self._dynamic.unmatched(), *self._only.unmatched())
