"""One layer of fp4 or fp6 codes on a GPU: fused products, or 16-bit weights made in turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from quantdock.formats import QuantSpec
from quantdock_cuda.device import Device, counters, device_of
from quantdock_cuda.packed_execution import WORKSPACE_BYTES, product_into
from quantdock_cuda.replays import Replays
from quantdock_triton.small_float_matmul import (
    FloatTile,
    FloatWeight,
    SmallFloat,
    matmul,
    small_float_of,
    widen,
)

# Rows of x from which the weight is made 16-bit first, for torch's product.
MOST_FUSED = 128
# By rows of x: the tile, without what follows from the device and the layer, and how many warps of
# all programs there are for each multiprocessor.
TILES = {
    16: (FloatTile(m=16, n=128, warps=8, stages=2), 16),
    32: (FloatTile(m=32, n=128, warps=8, stages=3), 8),
    MOST_FUSED: (FloatTile(m=64, n=128, warps=8, stages=2), 8),
}
# One order of sums for any number of rows.
ALONE = FloatTile(m=16, n=64, stages=2)
_MOST_PARTS = 8
_LEAST_WORDS = 128  # of a row, for each program that shares its sum
_SCRATCH_BYTES = 4096  # of shared memory, beside the stages
_HEIGHT = 256  # rows of the weight at a time are a multiple


class SmallFloatExecution:
    """Runs layers [N, K] of one spec on one GPU; made by ``execution``."""

    def __init__(self, spec: QuantSpec, n: int, k: int, device: int, batch_invariant: bool) -> None:
        self._kind, self._n, self._k, self._device = small_float_of(spec), n, k, device
        self._facts, self._alone = device_of(device), batch_invariant
        # A power of two may be too small or too large a scale for float16.
        self._widens = {torch.float32, torch.bfloat16}
        if spec.scale == "e4m3":
            self._widens.add(torch.float16)
        self.replays = Replays(self._whole, device)

    def __call__(
        self,
        x: Tensor,
        words: Tensor,
        scale: Tensor,
        second: Tensor | None,
        bias: Tensor | None,
        out: Tensor,
    ) -> None:
        """Write ``x @ weight.T + bias`` to ``out``.

        Shapes:
            x: [M, K], M >= 1, columns side by side. out: [M, N], in x's dtype or f32. Those of
            the weight: small_float_tensors.py.
        """
        m = x.shape[0]
        weight = FloatWeight(words=words, scale=scale, second=second, last=self._n)
        fuses = m <= MOST_FUSED and x.dtype != torch.float32
        if self._alone:
            matmul(self._kind, ALONE, self._k)(x, weight, bias, out)
        elif fuses or x.dtype not in self._widens:
            tile = tile_for(self._kind, self._facts, self._n, self._k, min(m, MOST_FUSED))
            matmul(self._kind, tile, self._k)(x, weight, bias, out, counters(self._device))
        else:
            make = widen(self._kind, self._k)
            for first, last in turns(self._n, self._k * x.element_size()):
                dense = torch.empty((last - first, self._k), dtype=x.dtype, device=x.device)
                make(weight.rows(first, last), dense)
                added = None if bias is None else bias[first:last]
                product_into(x, dense, added, out[:, first:last])
                del dense  # so that the next turn gets the same memory

    def _whole(
        self, x: Tensor, words: Tensor, scale: Tensor, second: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        """Return the result in x's dtype for x [..., K] whose rows follow each other."""
        result = torch.empty((*x.shape[:-1], self._n), dtype=x.dtype, device=x.device)
        self(x.view(-1, self._k), words, scale, second, bias, result.view(-1, self._n))
        return result


def turns(n: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the rows of a weight in turns that a large cache holds."""
    step = max(WORKSPACE_BYTES // row_bytes // _HEIGHT, 1) * _HEIGHT
    for first in range(0, n, step):
        yield first, min(first + step, n)


@lru_cache(maxsize=1 << 12)
def tile_for(kind: SmallFloat, device: Device, n: int, k: int, m: int) -> FloatTile:
    """Return the tile for ``m`` rows of x, up to MOST_FUSED, of a layer [N, K]."""
    tile, warps = next(found for rows, found in TILES.items() if m <= rows)
    tile = tile.fitted(kind.packing, device.shared_bytes - _SCRATCH_BYTES)
    num_tiles = -(-m // tile.m) * -(-n // tile.n)
    parts = round(warps * device.num_sms / (num_tiles * tile.warps))
    most = min(k // kind.packing.places // _LEAST_WORDS, _MOST_PARTS)
    return replace(tile, parts=max(min(parts, most), 1))


@lru_cache(maxsize=1 << 12)
def execution(
    spec: QuantSpec, n: int, k: int, device: int, batch_invariant: bool
) -> SmallFloatExecution:
    """Return what runs layers [n, k] of ``spec`` on GPU ``device``."""
    return SmallFloatExecution(spec, n, k, device, batch_invariant)
