"""What codes and scales mean: plain torch, exact, on every device. See docs/numerics.md."""

from quantdock.formats import num_words
from quantdock.numerics.byte_packing import pack_bytes, sign_extend, unpack_bytes
from quantdock.numerics.canonical import CanonicalWeight, Segment, join, quantize_weight
from quantdock.numerics.cast import decode, encode
from quantdock.numerics.conversion import Change, compare_weights, recode, requantize
from quantdock.numerics.cut import cut_columns, cut_rows
from quantdock.numerics.dtypes import dtype_name, torch_dtype
from quantdock.numerics.expert_blocks import pack_expert_blocks, unpack_expert_blocks
from quantdock.numerics.fnuz import double_scale, from_fnuz, halve_scale, to_fnuz
from quantdock.numerics.packing import pack_bits, unpack_bits
from quantdock.numerics.quantize import Quantized, dequantize, quantize
from quantdock.numerics.scale_layout import swizzle_scale, unswizzle_scale
from quantdock.numerics.scales import (
    SMALLEST_SCALE,
    choose_scale,
    choose_scale_and_zero,
    choose_second_divisor,
    choose_second_scale,
    decode_mx_scale,
    decode_scale,
    encode_mx_scale,
    encode_scale,
    fold_input,
    round_scale,
)
from quantdock.numerics.second_scale import combine_scales, fold_second_scales
from quantdock.numerics.tiles import expand_scale, tile_amax, tile_range

__all__ = [
    "SMALLEST_SCALE",
    "CanonicalWeight",
    "Change",
    "Quantized",
    "Segment",
    "choose_scale",
    "choose_scale_and_zero",
    "choose_second_divisor",
    "choose_second_scale",
    "combine_scales",
    "compare_weights",
    "cut_columns",
    "cut_rows",
    "decode",
    "decode_mx_scale",
    "decode_scale",
    "dequantize",
    "double_scale",
    "dtype_name",
    "encode",
    "encode_mx_scale",
    "encode_scale",
    "expand_scale",
    "fold_input",
    "fold_second_scales",
    "from_fnuz",
    "halve_scale",
    "join",
    "num_words",
    "pack_bits",
    "pack_bytes",
    "pack_expert_blocks",
    "quantize",
    "quantize_weight",
    "recode",
    "requantize",
    "round_scale",
    "sign_extend",
    "swizzle_scale",
    "tile_amax",
    "tile_range",
    "to_fnuz",
    "torch_dtype",
    "unpack_bits",
    "unpack_bytes",
    "unpack_expert_blocks",
    "unswizzle_scale",
]
