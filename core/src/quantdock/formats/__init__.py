"""Bytes in a checkpoint: elements, storage dtypes, tiles. Nothing here imports torch."""

from quantdock.formats.dtypes import DTYPES, EXPONENT_BYTES, StorageDtype
from quantdock.formats.element import ELEMENTS, Element
from quantdock.formats.spec import QuantSpec, parse_spec

__all__ = [
    "DTYPES",
    "ELEMENTS",
    "EXPONENT_BYTES",
    "Element",
    "QuantSpec",
    "StorageDtype",
    "parse_spec",
]
