"""AutoRound's MX and NV layers, in the tensors of compressed-tensors: ``weight_packed`` and scales.

>>> from quantdock.schemes import LayerFacts
>>> block = {"bits": 4, "group_size": 32, "data_type": "mx_fp", "act_bits": 16}
>>> reader = read_small_floats(Fields(block, "demo"), "auto_round:llm_compressor", "the block")
>>> str(reader.usual(LayerFacts(prefix="model.layers.0.up_proj")).scheme)
'fp4_e2m1[1x32]:e8m0:even'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NoReturn

from quantdock.configs.fields import Fields
from quantdock.configs.kind_to_come import kind_to_come
from quantdock.configs.mixed_checkpoint import Fp8Layers, Reader
from quantdock.configs.packed_floats import (
    NVFP4,
    NVFP4_INPUT,
    PackedFloats,
    PackedNames,
    mx_spec,
)
from quantdock.formats import QuantSpec
from quantdock.schemes import Scheme

METHOD = "auto-round"
PLAIN_BITS = 16  # and more: the layer, or its input, is left as it is
_PACKINGS = ("auto_round", "auto_round:llm_compressor")
_SUPPORTED = (
    "supported: integer weights of 2 to 8 bits packed as 'auto_round', 'auto_round:auto_gptq' or "
    "'auto_round:auto_awq', fp8, mx_fp of 4 and 8 bits, nv_fp of 4 bits"
)
_MXFP4, _MXFP8 = mx_spec("fp4_e2m1"), mx_spec("fp8_e4m3", "ceil")
# A word may end with how scales are made; of weights they are stored.
_MX = ("mx_fp", "mx_fp4", "mx_fp8", "mx_fp_rceil", "mx_fp4_rceil", "mx_fp8_rceil")
_NV = ("nv_fp", "nv_fp4", "nv_fp4_with_static_gs")
_WEIGHTS: Mapping[tuple[str, int], QuantSpec] = MappingProxyType(
    {("mx", 4): _MXFP4, ("mx", 8): _MXFP8, ("nv", 4): NVFP4}
)
SMALL_FLOATS = frozenset((*_MX, *_NV))


class AutoRoundMx(PackedFloats):
    """MXFP4 layers: ``weight_packed`` and exponent bytes in ``weight_scale``."""

    name = METHOD
    codes = "weight_packed"


class AutoRoundNv(AutoRoundMx):
    """NVFP4 layers: second scales, ``weight_global_scale`` and ``input_global_scale``, divide."""

    names = PackedNames(
        second="weight_global_scale", input_scale=("input_global_scale",), divides=True
    )


class AutoRoundMxfp8(Fp8Layers):
    """MXFP8 layers: ``weight`` and exponent bytes in ``weight_scale``."""

    name = METHOD


def read_small_floats(fields: Fields, packing: str, source: str) -> Reader:
    """Return what reads layers whose ``data_type`` is one of SMALL_FLOATS.

    Raises:
        ConfigError: a field is missing or has an impossible value.
        MethodNotYetError: the packing, or an encoding, is known, or unknown, and cannot be run.
    """
    word = str(fields.get("data_type")).lower()
    bits = fields.get("bits")
    weight = _WEIGHTS.get((word[:2], bits if isinstance(bits, int) else 0))
    if weight is None or packing not in _PACKINGS:
        not_yet(source, f"is {word} of {bits} bits, packed as {packing!r}")
    if fields.get("group_size") != weight.cols:
        fields.refuse("group_size", str(weight.cols), f"data_type is {word!r}")
    scheme = Scheme(weight=weight, activation=_activation(fields, weight, source))
    stated = f"{source}: data_type = {word!r}, bits = {bits}"
    if bits == 8:
        return AutoRoundMxfp8(weight, scheme.activation, stated)
    return (AutoRoundMx if weight is _MXFP4 else AutoRoundNv)(scheme, stated)


def _activation(fields: Fields, weight: QuantSpec, source: str) -> QuantSpec | None:
    """Return how activations are encoded: as weights are, or not at all."""
    bits = fields.get("act_bits")
    if bits is None or (isinstance(bits, int) and bits >= PLAIN_BITS):
        return None
    word = str(fields.get("act_data_type") or fields.get("data_type")).lower()
    given = _WEIGHTS.get((word[:2], bits if isinstance(bits, int) else 0))
    size = fields.get("act_group_size")
    if word not in SMALL_FLOATS or given is not weight or size not in (None, weight.cols):
        not_yet(source, f"has activations in {word} of {bits} bits by {size} beside {weight}")
    if weight is NVFP4:
        return NVFP4_INPUT
    rounding = "ceil" if word.endswith("rceil") else weight.rounding
    return replace(weight, rounding=rounding, dynamic=True)


def not_yet(where: str, what: str) -> NoReturn:
    """Raise the error for a kind that ``what`` is called at ``where`` in the block.

    Raises:
        MethodNotYetError: always.
    """
    kind_to_come(METHOD, f"{where} {what}", _SUPPORTED)
