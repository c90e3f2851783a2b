"""awq: 4-bit weights by groups of input columns, in one of AutoAWQ's layouts.

>>> block = {"w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "GEMM"}
>>> config = AWQConfig.from_config(block)
>>> str(config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.up_proj")).scheme)
'uint4[1x128]:zero'
>>> config.version
'gemm'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from quantdock.configs.awq_layouts import BITS, CHECKS, LAYOUTS
from quantdock.configs.awq_tensors import awq_slots, decode_awq
from quantdock.configs.fields import Fields
from quantdock.configs.group_setting import GroupSetting
from quantdock.configs.header_check import Misfit
from quantdock.configs.integer_checkpoint import IntegerCheckpointConfig
from quantdock.configs.matcher import Entry
from quantdock.schemes import Decision, LayerFacts, Scheme, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.methods.slot import Slot
    from quantdock.numerics.canonical import CanonicalWeight

_VERSIONS = {**{version: version for version in LAYOUTS}, "gemvfast": "gemv_fast"}
# Who wrote a file and packed it in words of its own.
_OTHER_BACKENDS = frozenset({"llm-awq", "llmawq"})


class AWQConfig(IntegerCheckpointConfig):
    """A checkpoint that says ``awq``.

    Attributes:
        setting: how its layers are encoded.
        version: the layout of its words, a key of LAYOUTS.
    """

    name: ClassVar[str] = "awq"
    codes: ClassVar[str] = "qweight"
    repacked = False

    def __init__(
        self,
        setting: GroupSetting,
        version: str = "gemm",
        *,
        ignored: Sequence[Entry[None]] = (),
        quantized_kinds: frozenset[str] = frozenset(),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        size = -1 if setting.group_size is None else setting.group_size
        stated = (
            f"bits = {setting.bits}, group_size = {size}, zero_point = {not setting.sym}, "
            f"version = {version!r}"
        )
        super().__init__(
            ignored=ignored, quantized_kinds=quantized_kinds, stated=stated, extra=extra
        )
        self.setting = setting
        self.version = version

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the config of an AWQ checkpoint.

        Files that do not say whether they have zero points are read with them.

        Raises:
            ConfigError: a field is missing or has an impossible value, or the file is in a layout
                of another tool.
        """
        fields = Fields(config, cls.name)
        if fields.flag("desc_act"):
            fields.refuse("desc_act", "false", "AWQ stores no index of groups")
        if fields.get("pack_dtype") not in (None, "int32"):
            fields.refuse("pack_dtype", "'int32'", "qweight is read in words of 32 bits")
        return cls(
            GroupSetting(
                bits=fields.bits("bits", "w_bit", allowed=BITS),
                group_size=fields.group_size("group_size", "q_group_size"),
                sym=fields.flag("zero_point") is False,
            ),
            _read_version(fields),
            ignored=fields.names("modules_to_not_convert"),
            quantized_kinds=frozenset({"head"} if fields.flag("lm_head") else ()),
            extra=fields.rest(),
        )

    def usual(self, facts: LayerFacts) -> Decision:
        """Return the scheme that all quantized layers have."""
        because = (
            "the checkpoint says so of all layers"
            if facts.stored is None
            else "the file stores it as qweight"
        )
        return Decision.quantized(Scheme(weight=self.setting.spec), because, self._stated)

    def misfit(self, scheme: Scheme, tensors: Mapping[str, StoredTensor]) -> Misfit | None:
        """Return why headers contradict ``scheme``, and which group size they fit."""
        return CHECKS[self.version].misfit(scheme.weight, tensors)

    def weight_shape(self, scheme: Scheme, facts: LayerFacts) -> tuple[int, ...]:
        """Return the (N, K) that the words stand for."""
        return LAYOUTS[self.version].shape(scheme.weight, facts.stored or {})

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the codes and scales, and the zero points where they may be stored."""
        return awq_slots(scheme, n, k, facts, self.version)

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the canonical weight; no value changes."""
        return decode_awq(scheme, stored, facts, self.version)


def _read_version(fields: Fields) -> str:
    """Return the layout of the words; files that name none are of the usual one.

    Raises:
        ConfigError: the layout is that of another tool or of one kernel.
    """
    if str(fields.get("backend")).lower() in _OTHER_BACKENDS:
        because = "llm-awq packs its words in an order of its own"
        fields.refuse("backend", "'autoawq', or none", because)
    name = next((n for n in ("version", "checkpoint_format", "format") if fields.get(n)), "version")
    word = str(fields.get(name) or "gemm").strip().lower()
    if word not in _VERSIONS:
        because = "other words name the layout of one kernel, or another tool's"
        fields.refuse(name, ", ".join(map(repr, LAYOUTS)), because)
    return _VERSIONS[word]
