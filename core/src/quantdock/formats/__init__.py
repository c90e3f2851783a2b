"""Bytes in a checkpoint: elements, storage dtypes, tiles. Nothing here imports torch."""

from quantdock.formats.dtypes import DTYPES, EXPONENT_BYTES, FLOATS, StorageDtype
from quantdock.formats.element import ELEMENTS, Element
from quantdock.formats.spec import QuantSpec, SecondScale, parse_spec
from quantdock.formats.words import WORD_BITS, num_words

__all__ = [
    "DTYPES",
    "ELEMENTS",
    "EXPONENT_BYTES",
    "FLOATS",
    "WORD_BITS",
    "Element",
    "QuantSpec",
    "SecondScale",
    "StorageDtype",
    "num_words",
    "parse_spec",
]
