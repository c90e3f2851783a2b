"""What codes and scales mean: plain torch, exact, on every device. See docs/numerics.md."""

from quantdock.formats import num_words
from quantdock.numerics.canonical import CanonicalWeight, Segment, join, quantize_weight
from quantdock.numerics.cast import decode, encode
from quantdock.numerics.cut import cut_columns, cut_rows
from quantdock.numerics.dtypes import dtype_name, torch_dtype
from quantdock.numerics.fnuz import double_scale, from_fnuz, halve_scale, to_fnuz
from quantdock.numerics.packing import pack_bits, unpack_bits
from quantdock.numerics.quantize import Quantized, dequantize, quantize
from quantdock.numerics.scales import (
    SMALLEST_SCALE,
    choose_scale,
    choose_scale_and_zero,
    decode_scale,
    encode_scale,
    round_scale,
)
from quantdock.numerics.tiles import expand_scale, tile_amax, tile_range

__all__ = [
    "SMALLEST_SCALE",
    fold_input,
    "CanonicalWeight",
    "Quantized",
    "Segment",
    "choose_scale",
    "choose_scale_and_zero",
    "cut_columns",
    "cut_rows",
    "decode",
    "decode_scale",
    "dequantize",
    "double_scale",
    "dtype_name",
    "encode",
    "encode_scale",
    "expand_scale",
    "from_fnuz",
    "halve_scale",
    "join",
    "num_words",
    "pack_bits",
    "quantize",
    "quantize_weight",
    "round_scale",
    "tile_amax",
    "fold_input",
    "tile_range",
    "to_fnuz",
    "torch_dtype",
    "unpack_bits",
]
