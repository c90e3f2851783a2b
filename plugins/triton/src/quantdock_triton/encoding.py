"""What kernels that quantize must know of a spec, and the memory of their results."""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.numerics import torch_dtype

ROW_MULTIPLE = 4  # rows come in multiples of it: libraries read whole vectors of scales
TALLEST = 256  # rows of tiles of codes at most; those of all are parts of it
_FRACTION_BITS = 23  # of f32


def _carry(spec: QuantSpec) -> int:
    """Return what is added to the bits of a scale that is cut to a power of two; -1: it is not."""
    element = ELEMENTS[spec.element]
    return {
        "exact": -1,
        "ceil": (1 << _FRACTION_BITS) - 1,
        "floor": 0,
        "even": 1 << (_FRACTION_BITS - 1 - element.fraction_bits),
    }[spec.rounding]


def _divisor(spec: QuantSpec) -> float:
    """Return what the largest magnitude is divided by."""
    largest = ELEMENTS[spec.element].largest
    if spec.rounding in ("floor", "even"):
        return float(1 << (int(largest).bit_length() - 1))
    return largest


def claimed_rows(x: Tensor, m: int, tall: int) -> int:
    """Return how many rows of ``x`` [M or more, K], contiguous, to describe for ``tall`` tiles.

    The copy engine is slow where a tile reaches beyond what is described. So where memory goes on
    behind the M rows it is described up to the tile's end; it is read, and no result has it.
    """
    behind = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    return max(m, min(-(-m // tall) * tall, behind // x.shape[1]))


class Encoding:
    """What kernels must know of a spec for inputs of K columns, and the memory of its results."""

    def __init__(self, spec: QuantSpec, k: int, ptx: bool, row_major: bool = False) -> None:
        element = ELEMENTS[spec.element]
        self.k, self._row_major = k, row_major
        self.dtype = torch_dtype(element.storage)
        self.range = (element.lowest, element.largest, ptx)
        self.scale = (_divisor(spec), _carry(spec))
        self.is_whole = spec.granularity == "tensor"
        self.size = k if spec.cols is None else min(spec.cols, k)
        self.groups = -(-k // self.size)

    def empty(self, m: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return memory for codes and scales of m rows; see Quantizer.

        Behind the codes there is memory for as many rows as tiles of products reach: see
        ``claimed_rows``.
        """
        rows = -(-m // ROW_MULTIPLE) * ROW_MULTIPLE
        room = -(-m // TALLEST) * TALLEST
        codes = torch.empty((room, self.k), dtype=self.dtype, device=device)[:rows]
        sizes, strides = ((1, 1), (1, 1)) if self.is_whole else ((rows, self.groups), (1, rows))
        if self._row_major:
            strides = (sizes[1], 1)
        return codes, torch.empty_strided(sizes, strides, dtype=torch.float32, device=device)
