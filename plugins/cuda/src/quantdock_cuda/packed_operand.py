"""Codes of packed words as the left operand of a product, in registers.

A code becomes a 16-bit float without a conversion: put below the exponent of 2^7 (bfloat16), 2^10
(float16) or 2^23 (f32, for codes of 8 bits) it is that power of two plus the code, and subtracting
the power and the zero point is exact. Sign, exponent and fraction of a code of fp8_e4m3 are put
where the other float has them, and a power of two makes up for where their exponents begin. That of
a code of fp4_e2m1 is part of its scale, but for what multiplies the sum (packed_scale_layout).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from quantdock_triton.small_float_kernel import placed

# By dtype: its name in PTX, twice 1.0, twice the power of two that codes of 4 bits are put below,
# and that power.
_FLOATS = {
    "bf16": ("bf16", 0x3F803F80, 0x43004300, 2.0**7),
    "fp16": ("f16", 0x3C003C00, 0x64006400, 2.0**10),
}
# For codes of fp8_e4m3: where their exponent and fraction lie in the other float, how far above
# bit 0 that is, and twice what makes up for the exponent: 2^120 and 2^8.
_EXPONENTS = {"bf16": (0x07F007F0, 4, 0x7B807B80), "fp16": (0x3F803F80, 7, 0x5C005C00)}


@gluon.constexpr_function
def power_below(bits, dtype):
    """Return the power of two that codes are put below."""
    return _FLOATS[dtype.name][3] if bits == 4 else 2.0**23


@gluon.constexpr_function
def twice(dtype):
    """Return PTX that rounds an f32 to ``dtype``, twice, in one register."""
    return f"cvt.rn.{_FLOATS[dtype.name][0]}x2.f32 $0, $1, $1;"


@gluon.constexpr_function
def widened(place, name):
    """Return PTX that makes the codes of fp8_e4m3 at one place of two words ($1) floats."""
    fields, above, power = _EXPONENTS[name]
    shift = f"shr.b32 both, $1, {8 - above};" if place else f"shl.b32 both, $1, {above};"
    sign = "mov.b32 first, $1;" if place else "shl.b32 first, $1, 8;"
    return (
        f"{shift} {sign} and.b32 first, first, 0x80008000;"
        f" lop3.b32 both, both, {fields:#010x}, first, 0xea;"
        f" mov.b32 base, {power:#010x}; mul.rn.{_FLOATS[name][0]}x2 both, both, base;"
    )


_FOURS = placed(4, 1)  # by place, of fp4_e2m1
# Where the fields of bytes of scales are in bfloat16, and what stands above them.
_BYTES = {"e8m0": (7, 0), "e4m3": (4, 0x5)}


@gluon.constexpr_function
def widened_byte(place, form):
    """Return PTX that makes a byte ($1) of a scale bfloat16, twice, times a power of two."""
    above, more = _BYTES[form.scale]
    return (
        f"{{ .reg .b32 both; prmt.b32 both, $1, {more}, {0x4040 + 0x0101 * place:#06x};"
        f" shl.b32 $0, both, {above}; }}"
    )


@gluon.constexpr_function
def instructions(place, form, dtype):
    """Return PTX that makes the codes at one place of two words ($1) floats.

    $2 is added to integers (of 8 bits: $2 to one, $3 to the other); the last argument multiplies
    folded ones.
    """
    bits, folded = form.bits, form.folded
    kind, one, power, _ = _FLOATS[dtype.name]
    if form.pieces > 0:
        registers = ".reg .b32 codes, moved;"
        return f"{{ {registers}{_FOURS[place]} mul.rn.bf16x2 $0, codes, $2; }}"
    if form.is_float:
        text = widened(place, dtype.name)
    elif bits == 4:
        text = (
            f"mov.b32 base, {power:#010x}; shr.b32 both, $1, {4 * place};"
            " lop3.b32 both, both, 0x000f000f, base, 0xea;"  # (both & mask) | base
            f" mov.b32 base, {one:#010x}; fma.rn.{kind}x2 both, both, base, $2;"
        )
    else:
        text = (
            "mov.b32 base, 0x4B000000;"
            f" prmt.b32 first, $1, base, {0x7650 + place:#06x};"  # 2^23 and the code, as f32
            f" prmt.b32 second, $1, base, {0x7652 + place:#06x};"
            " mov.b32 a, first; mov.b32 b, second; mov.b32 c, $2; mov.b32 d, $3;"
            f" add.f32 a, a, c; add.f32 b, b, d; cvt.rn.{kind}x2.f32 both, b, a;"
        )
    factor = f"${2 + form.addends}"
    last = f"mul.rn.{kind}x2 $0, both, {factor};" if folded else "mov.b32 $0, both;"
    registers = ".reg .b32 both, first, second, base; .reg .f32 a, b, c, d;"
    return f"{{ {registers} {text} {last} }}"


@gluon.constexpr_function
def constraints(form):
    """Return what ``instructions`` take, as LLVM spells it."""
    if form.pieces > 0:
        return "=r,r,r,r"
    return "=r,r" + ",r" * (form.addends + form.folded)


@gluon.jit
def scale_at(stored, PLACE: gl.constexpr, FORM: gl.constexpr):
    """Return the scales of one place of words, bfloat16 twice, of bytes (``read_bytes``)."""
    PTX: gl.constexpr = widened_byte(PLACE, FORM)
    return gl.inline_asm_elementwise(PTX, "=r,r", [stored], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def scaled_floats(words, stored, PLACE: gl.constexpr, FORM: gl.constexpr):
    """Return the codes of fp4_e2m1 at one place of words [rows, plane], times their scales."""
    PTX: gl.constexpr = instructions(PLACE, FORM, gl.bfloat16)
    TAKEN: gl.constexpr = constraints(FORM)
    LAYOUT: gl.constexpr = words.type.layout
    SHAPE: gl.constexpr = words.shape
    PIECES: gl.constexpr = FORM.pieces
    factor = scale_at(stored[0], PLACE, FORM)
    if PIECES == 1:
        split, factor = words, gl.expand_dims(factor, 1)
    else:
        if PIECES == 2:
            factor = gl.join(factor, scale_at(stored[1], PLACE, FORM))
        else:
            even = gl.join(factor, scale_at(stored[2], PLACE, FORM))
            odd = gl.join(scale_at(stored[1], PLACE, FORM), scale_at(stored[3], PLACE, FORM))
            factor = gl.reshape(gl.join(even, odd), [SHAPE[0], PIECES])
        split = gl.reshape(words, [SHAPE[0], PIECES, SHAPE[1] // PIECES])
        factor = gl.convert_layout(factor, gl.SliceLayout(2, split.type.layout))
        factor = gl.expand_dims(factor, 2)
    result = gl.inline_asm_elementwise(PTX, TAKEN, [split, factor], dtype=gl.bfloat16, is_pure=True,
                                       pack=2)  # fmt: skip
    if PIECES > 1:
        result = gl.convert_layout(gl.reshape(result, SHAPE), LAYOUT, assert_trivial=True)
    return result


@gluon.jit
def operand(words, zeros, scales, PLACE: gl.constexpr, FORM: gl.constexpr, dtype: gl.constexpr):
    """Return ``code - zero`` of the codes at one place of words; folded: times their scale."""
    if FORM.pieces > 0:
        return scaled_floats(words, scales, PLACE, FORM)
    PTX: gl.constexpr = instructions(PLACE, FORM, dtype)
    TAKEN: gl.constexpr = constraints(FORM)
    zero = zeros[PLACE // FORM.run if len(zeros) > 1 else 0]
    added = -power_below(FORM.bits, dtype) - zero
    rounded = added.to(dtype)
    added = gl.expand_dims(rounded if FORM.bits == 4 else added, 1)
    if FORM.folded:
        factor = gl.expand_dims(scales[PLACE // FORM.run].to(dtype), 1)
    if FORM.is_float and FORM.folded:
        return gl.inline_asm_elementwise(PTX, TAKEN, [words, factor], dtype=rounded.dtype,
                                         is_pure=True, pack=2)  # fmt: skip
    elif FORM.is_float:
        return gl.inline_asm_elementwise(PTX, TAKEN, [words], dtype=rounded.dtype, is_pure=True,
                                         pack=2)  # fmt: skip
    elif FORM.folded:
        return gl.inline_asm_elementwise(PTX, TAKEN, [words, added, factor],
                                         dtype=rounded.dtype, is_pure=True, pack=2)  # fmt: skip
    else:
        return gl.inline_asm_elementwise(PTX, TAKEN, [words, added], dtype=rounded.dtype,
                                         is_pure=True, pack=2)  # fmt: skip
