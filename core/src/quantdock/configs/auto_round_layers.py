"""AutoRound's layers: a packing names the tensors of another dialect, whose decoder reads them.

>>> block = {"bits": 4, "group_size": 32, "sym": True, "packing_format": "auto_round:auto_awq"}
>>> str(read_scheme(block, "the block").usual(LayerFacts(prefix="model.layers.0.up_proj")).scheme)
'int4[1x32]'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from quantdock.configs.auto_round_floats import (
    METHOD,
    PLAIN_BITS,
    SMALL_FLOATS,
    not_yet,
    read_small_floats,
)
from quantdock.configs.awq import AWQConfig
from quantdock.configs.awq_layouts import BITS as AWQ_BITS
from quantdock.configs.fields import Fields
from quantdock.configs.gptq import GPTQConfig
from quantdock.configs.gptq_tensors import ZeroStorage
from quantdock.configs.group_setting import GroupSetting
from quantdock.configs.kind_to_come import require_known
from quantdock.configs.mixed_checkpoint import Fp8Layers, Reader
from quantdock.formats import QuantSpec
from quantdock.schemes import Decision, LayerFacts

BITS = range(2, 9)
_USUAL = "auto_round:auto_gptq"  # of files that name no packing
_INTEGER = ("int",)
_FLOAT8 = {"fp": "fp8_e4m3", "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
_FLOAT8 |= {f"{word}_sym": element for word, element in _FLOAT8.items()}
# What else AutoRound calls its data types.
_TO_COME = (
    "int_sym",
    "int_asym",
    "int_sym_dq",
    "int_asym_dq",
    "int_asym_float_zp",
    "rtn_int_sym",
    "opt_rtn_int_sym",
    "opt_rtn_int_asym",
    "fp8_to_int_sym",
    "fp8_dynamic_per_token_sym",
    "fp8_gaudi3_sym",
    "fp8_unit_scale",
    "fp8_e5m2_unit_scale",
    "block_fp8",
    "block_fp8_sym",
    "block_fp8_e4m3",
    "mx_int",
    "fp4_v2",
)
_PLAIN = ("float", "float16", "float32", "bfloat16", "bf16", "fp16", "fp32")


class AutoRoundGPTQ(GPTQConfig):
    """Layers in GPTQ's words; no index of groups is stored, or one in order."""

    name = METHOD

    def __init__(self, setting: GroupSetting, packing: str, source: str, *, v2: bool) -> None:
        stated = f"packing_format = {packing!r}"
        super().__init__(setting, zeros=ZeroStorage(v2=v2, stated=stated))
        self._source = f"{source}: {_words(setting)}, {stated}"

    def usual(self, facts: LayerFacts) -> Decision:
        """Return the scheme, and where the block says it."""
        return replace(super().usual(facts), source=self._source)


class AutoRoundAWQ(AWQConfig):
    """Layers in AWQ's words."""

    name = METHOD

    def __init__(self, setting: GroupSetting, packing: str, source: str) -> None:
        super().__init__(setting)
        self._source = f"{source}: {_words(setting)}, packing_format = {packing!r}"

    def usual(self, facts: LayerFacts) -> Decision:
        """Return the scheme, and where the block says it."""
        return replace(super().usual(facts), source=self._source)


class AutoRoundFloats(Fp8Layers):
    """Layers in fp8: ``weight``, ``weight_scale`` and, where static, ``input_scale``."""

    name = METHOD

    def words_for(self, tile: QuantSpec) -> str:
        """Return the group size, by which such files say every tile."""
        size = {"tensor": 0, "channel": -1, "group": tile.cols}
        return f"group_size = {size.get(tile.granularity, [tile.rows, tile.cols])}"


def _gptq(fields: Fields, packing: str, source: str) -> Reader:
    return AutoRoundGPTQ(_setting(fields, BITS), packing, source, v2=False)


def _gptq_v2(fields: Fields, packing: str, source: str) -> Reader:
    return AutoRoundGPTQ(_setting(fields, BITS), packing, source, v2=True)


def _awq(fields: Fields, packing: str, source: str) -> Reader:
    return AutoRoundAWQ(_setting(fields, AWQ_BITS), packing, source)


# What follows "auto_round:" in a packing; an engine's name may follow that and says nothing of the
# tensors. AutoRound's own packing stores zero points as they are meant.
_PACKINGS: Mapping[str, Callable[[Fields, str, str], Reader]] = MappingProxyType(
    {
        "": _gptq_v2,
        "gptqmodel": _gptq_v2,
        "auto_gptq": _gptq,
        "gptq": _gptq,
        "auto_awq": _awq,
        "awq": _awq,
    }
)
_OTHERS = ("auto_round:llm_compressor", "auto_round:fp8")  # of floats
_PACKINGS_TO_COME = (
    "auto_round:fake",
    "auto_round:marlin",
    "fake",
    "gguf",
    "itrex",
    "itrex_xpu",
    "llm_compressor",
    "mlx",
)


def read_scheme(block: Mapping[str, Any], source: str) -> Reader | None:
    """Return what reads the layers that ``block`` describes; None: they are left as they are.

    Raises:
        ConfigError: a field is missing or has an impossible value.
            Or nobody knows the packing or the data type.
        MethodNotYetError: the packing or the data type is known and cannot be run yet.
    """
    fields = Fields(block, f"{METHOD}: {source}")
    word, bits = str(fields.get("data_type") or "int").lower(), fields.get("bits")
    if word in _PLAIN or (isinstance(bits, int) and bits >= PLAIN_BITS):
        return None
    packing = str(fields.get("packing_format") or fields.get("backend") or _USUAL).lower()
    if word in _FLOAT8:
        return _read_float8(fields, _FLOAT8[word], source)
    if word in SMALL_FLOATS:
        return read_small_floats(fields, packing, source)
    if word not in _INTEGER:
        known = (*_INTEGER, *_FLOAT8, *sorted(SMALL_FLOATS), *_PLAIN)
        require_known(METHOD, source, "data_type", word, known, _TO_COME)
        not_yet(source, f"is {word} of {bits} bits, packed as {packing!r}")
    acts = fields.get("act_bits")
    if isinstance(acts, int) and acts < PLAIN_BITS:
        kind = fields.get("act_data_type") or "int"
        not_yet(source, f"has activations in {kind} of {acts} bits beside integer weights")
    family, _, rest = packing.partition(":")
    read = _PACKINGS.get(rest.partition(":")[0]) if family == "auto_round" else None
    if read is None:
        known = ("auto_round", *(f"auto_round:{name}" for name in _PACKINGS if name), *_OTHERS)
        if fields.get("packing_format"):  # "backend" may name any engine
            require_known(METHOD, source, "packing_format", packing, known, _PACKINGS_TO_COME)
        not_yet(source, f"is packed as {packing!r}")
    return read(fields, packing, source)


def _setting(fields: Fields, allowed: Any) -> GroupSetting:
    return GroupSetting(
        bits=fields.bits("bits", allowed=allowed),
        group_size=fields.group_size("group_size"),
        sym=bool(fields.flag("sym")),
    )


def _words(setting: GroupSetting) -> str:
    return ", ".join(f"{name} = {setting.block[name]}" for name in ("bits", "group_size", "sym"))


def _read_float8(fields: Fields, element: str, source: str) -> Reader:
    """Return what reads fp8 layers: a scale for a weight, a row of it (-1) or a block."""
    fields.bits("bits", allowed=(8,))
    if isinstance(fields.get("group_size"), list):
        rows, cols = fields.tile("group_size") or (None, None)
    elif fields.get("group_size") == 0:
        rows, cols = None, None
    else:
        rows, cols = 1, fields.group_size("group_size")
    weight = QuantSpec(element=element, rows=rows, cols=cols)
    stated = f"{source}: data_type = {fields.get('data_type')!r}"
    return AutoRoundFloats(weight, _float8_activation(fields, element, source), stated)


def _float8_activation(fields: Fields, element: str, source: str) -> QuantSpec | None:
    bits = fields.get("act_bits")
    if bits is None or (isinstance(bits, int) and bits >= PLAIN_BITS):
        return None
    fields.bits("act_bits", allowed=(8,))
    word = str(fields.get("act_data_type") or "fp").lower()
    if word not in _FLOAT8:
        not_yet(source, f"has activations in {word} of 8 bits beside fp8 weights")
    if not fields.flag("act_dynamic"):
        return QuantSpec(element=element)
    size = fields.get("act_group_size")
    if size == 0:
        return QuantSpec(element=element, dynamic=True)
    cols = None if size is None else fields.group_size("act_group_size")
    return QuantSpec(element=element, rows=1, cols=cols, dynamic=True)
