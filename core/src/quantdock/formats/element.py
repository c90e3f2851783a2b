"""What one code of a quantized tensor can be: the table of element types."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One element type; codes are stored one per byte in ``storage``.

    ``largest`` and ``lowest`` bound the values that quantizing produces. ``fraction_bits`` follow
    the leading one of a normal value (integers: all bits but sign and leading one).
    ``lowest_exponent`` is that of the smallest normal value (integers: 0).
    """

    name: str
    bits: int
    storage: str  # key of DTYPES
    lowest: float
    largest: float
    is_float: bool
    fraction_bits: int
    lowest_exponent: int = 0

    @property
    def memory_bits(self) -> int:
        """Return the bits of a code that lies packed: a byte holds 8, 4, 2 or 1 of them."""
        return next(size for size in (1, 2, 4, 8) if size >= self.bits)


def _float(
    name: str, bits: int, storage: str, largest: float, fraction_bits: int, lowest_exponent: int
) -> Element:
    return Element(
        name=name,
        bits=bits,
        storage=storage,
        lowest=-largest,
        largest=largest,
        is_float=True,
        fraction_bits=fraction_bits,
        lowest_exponent=lowest_exponent,
    )


def _signed(bits: int) -> Element:
    return _integer(f"int{bits}", bits, "int8", -(1 << bits - 1), (1 << bits - 1) - 1)


def _unsigned(bits: int) -> Element:
    return _integer(f"uint{bits}", bits, "uint8", 0, (1 << bits) - 1)


def _integer(name: str, bits: int, storage: str, lowest: int, largest: int) -> Element:
    return Element(
        name=name,
        bits=bits,
        storage=storage,
        lowest=lowest,
        largest=largest,
        is_float=False,
        fraction_bits=max(bits - 2, 0),
    )


# Written down instead of asked of torch.finfo: of float8_e5m2fnuz torch 2.13 says eps = 2^-3, and
# it is 2^-2. Source of the float ranges: OCP 8-bit Floating Point Specification r1.0 (e4m3, e5m2),
# arXiv 2206.02915 (the "fnuz" types: no infinity, one NaN at 0x80, no negative zero) and OCP
# Microscaling Formats 1.0, 5.3 (fp4, fp6: every code is a finite number; torch has no such dtypes).
ELEMENTS: dict[str, Element] = {
    element.name: element
    for element in (
        _float("fp8_e4m3", 8, "float8_e4m3fn", 448.0, 3, -6),
        _float("fp8_e5m2", 8, "float8_e5m2", 57344.0, 2, -14),
        _float("fp8_e4m3fnuz", 8, "float8_e4m3fnuz", 240.0, 3, -7),
        _float("fp8_e5m2fnuz", 8, "float8_e5m2fnuz", 57344.0, 2, -15),
        _float("fp6_e2m3", 6, "uint8", 7.5, 3, 0),
        _float("fp6_e3m2", 6, "uint8", 28.0, 2, -2),
        _float("fp4_e2m1", 4, "uint8", 6.0, 1, 0),
        *(_signed(bits) for bits in range(1, 9)),
        *(_unsigned(bits) for bits in range(1, 9)),
    )
}
