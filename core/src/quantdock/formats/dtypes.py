"""Storage dtypes as facts: torch's name, the name in a safetensors header, the width."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageDtype:
    """One dtype that a tensor can have on disk and in memory."""

    name: str  # torch's name without "torch."
    header: str  # name in a safetensors header
    bits: int
    floating: bool = False  # a plain float that may be cast to the model's dtype


_ROWS = (
    ("float64", "F64", 64, True),
    ("float32", "F32", 32, True),
    ("float16", "F16", 16, True),
    ("bfloat16", "BF16", 16, True),
    ("float8_e4m3fn", "F8_E4M3", 8, False),
    ("float8_e5m2", "F8_E5M2", 8, False),
    ("float8_e4m3fnuz", "F8_E4M3FNUZ", 8, False),
    ("float8_e5m2fnuz", "F8_E5M2FNUZ", 8, False),
    ("float8_e8m0fnu", "F8_E8M0", 8, False),
    ("float4_e2m1fn_x2", "F4", 4, False),
    ("int8", "I8", 8, False),
    ("uint8", "U8", 8, False),
    ("int16", "I16", 16, False),
    ("uint16", "U16", 16, False),
    ("int32", "I32", 32, False),
    ("uint32", "U32", 32, False),
    ("int64", "I64", 64, False),
    ("uint64", "U64", 64, False),
    ("bool", "BOOL", 8, False),
    ("complex64", "C64", 64, False),
)

DTYPES: dict[str, StorageDtype] = {
    name: StorageDtype(name=name, header=header, bits=bits, floating=floating)
    for name, header, bits, floating in _ROWS
}
# Those that activations may have.
FLOATS = tuple(dtype.name for dtype in DTYPES.values() if dtype.floating)
# Dtypes that store a power of two as its exponent byte: 2^(byte - 127), 255 is NaN.
EXPONENT_BYTES = ("uint8", "float8_e8m0fnu")
BY_HEADER: dict[str, StorageDtype] = {dtype.header: dtype for dtype in DTYPES.values()}
