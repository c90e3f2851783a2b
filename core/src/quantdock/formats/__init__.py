"""Bytes in a checkpoint: elements, storage dtypes, tiles. Nothing here imports torch."""

from quantdock.formats.dtypes import DTYPES, StorageDtype
from quantdock.formats.element import ELEMENTS, Element
from quantdock.formats.spec import QuantSpec, parse_spec

__all__ = ["DTYPES", "ELEMENTS", "Element", "QuantSpec", "StorageDtype", "parse_spec"]
