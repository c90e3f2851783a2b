"""One layer of packed codes on a GPU: fused products, or 16-bit weights made in turns."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from quantdock.kernels.scaled_linear import result_shape
from quantdock_cuda import packed_matmul, packed_stream
from quantdock_cuda.device import counters, device_of
from quantdock_cuda.packed_alone import alone_tile
from quantdock_cuda.packed_matmul import RolesTile
from quantdock_cuda.packed_stream import StreamTile
from quantdock_cuda.packed_stream_tiling import stream_tile
from quantdock_cuda.packed_tiling import rows_of_bucket, tile_for
from quantdock_cuda.replays import Replays
from quantdock_triton.packed_layout import Packing
from quantdock_triton.packed_matmul import PackedTile, PackedWeight, matmul, unpack
from quantdock_triton.packed_widen import widen
from quantdock_triton.reorder import reorder

# Of a weight made 16-bit, at a time: what a large cache holds, so that torch's product finds it
# there. The allocator hands all layers of a stream the same memory, inside of a CUDA graph too.
WORKSPACE_BYTES = 32 << 20
_HEIGHT = 256  # rows of the weight at a time are a multiple
_RESULTS = 1 << 21  # of a product, below which it leaves a large GPU partly idle


class PackedExecution:
    """Runs layers [N, K] of one packing on one GPU; made by ``execution``.

    Args:
        alone: each row is computed as if it were alone: its sums have one order for any number of
            rows.
    """

    def __init__(self, packing: Packing, n: int, k: int, device: int, alone: bool = False) -> None:
        self._packing, self._n, self._k, self._device = packing, n, k, device
        self._alone = alone
        self._facts = device_of(device)
        self.replays = Replays(self._whole, device)

    def __call__(self, x: Tensor, weight: PackedWeight, bias: Tensor | None, out: Tensor) -> None:
        """Write ``x @ weight.T + bias`` to the columns of ``out`` that the weight's rows are.

        Shapes:
            x: [M, K], M >= 1, columns side by side. out: [M, N], in x's dtype or f32.
        """
        tile = None if x.dtype == torch.float32 else self._tile(x.shape[0])
        if tile is None:
            self._by_library(x, weight, bias, out)
        elif isinstance(tile, StreamTile):
            stream = packed_stream.matmul(self._packing, tile, self._k)
            stream(x, weight, bias, out, counters(self._device))
        elif isinstance(tile, RolesTile):
            roles = packed_matmul.matmul(self._packing, tile, self._k, self._facts.num_sms)
            roles(x, weight, bias, out, counters(self._device))
        else:
            run = matmul(self._packing, tile, self._k)
            run(x, weight, bias, out, counters(self._device))

    def _tile(self, m: int) -> StreamTile | PackedTile | RolesTile | None:
        """Return the tile for ``m`` rows of x; None: by torch's product."""
        layer = (self._packing, self._facts, self._n, self._k)
        if self._alone:
            return alone_tile(*layer, rows_of_bucket(m))
        return stream_tile(*layer, m) or tile_for(*layer, rows_of_bucket(m))

    def ordered(self, x: Tensor, order: Tensor | None, multiplier: Tensor | None) -> Tensor:
        """Return x [M, K] in the order of a weight's columns, each times a factor of its own.

        Columns of the result are side by side.
        """
        if x.stride(1) != 1:
            x = x.contiguous()
        if x.shape[0] == 0 or (order is None and multiplier is None):
            return x
        early = "dependent_launch" in self._facts.features
        return reorder(x, order, multiplier, early=early)

    def _whole(
        self,
        x: Tensor,
        words: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        order: Tensor | None,
        multiplier: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """Return the result in x's dtype for x [..., K] whose rows follow each other."""
        shape = result_shape(x, self._n, self._k)
        result = torch.empty(shape, dtype=x.dtype, device=x.device)
        weight = PackedWeight(words=words, scale=scale, zero=zero, last=self._n)
        rows = self.ordered(x.view(-1, self._k), None if order is None else order[0], multiplier)
        self(rows, weight, bias, result.view(-1, self._n))
        return result

    def _by_library(
        self, x: Tensor, weight: PackedWeight, bias: Tensor | None, out: Tensor
    ) -> None:
        rows = max(WORKSPACE_BYTES // (self._k * x.element_size()), _RESULTS // x.shape[0])
        step = max(rows // _HEIGHT, 1) * _HEIGHT
        make = (widen if self._packing.is_float else unpack)(self._packing, self._k)
        for first in range(weight.first, weight.last, step):
            last = min(first + step, weight.last)
            dense = torch.empty((last - first, self._k), dtype=x.dtype, device=x.device)
            make(weight.rows(first, last), dense)
            added = None if bias is None else bias[first:last]
            if self._alone:
                for row in range(x.shape[0]):
                    own = x.new_empty((1, last - first), dtype=out.dtype)
                    product_into(x[row : row + 1].clone(), dense, added, own)
                    out[row, first:last] = own[0]
            else:
                product_into(x, dense, added, out[:, first:last])
            del dense  # so that the next turn gets the same memory


def reads_half(tensor: Tensor) -> bool:
    """Return whether scales and zero points in float16 are faster on the GPU of ``tensor``."""
    return tensor.is_cuda and "wgmma" in device_of(tensor.get_device()).features


def in_half(scale: Tensor, zero: Tensor) -> tuple[Tensor, Tensor]:
    """Return f32 scales and zero points [groups, N] in float16, where no number changes by that.

    All of a weight's are, or none: in groups of 128 they are an eighth of its bytes as f32. Scales
    alone are a sixteenth, and few rows of x take longer with them. Kernels copy those of two rows
    at once, so an odd N stays f32.
    """
    given = scale, zero
    made = scale.to(torch.float16), zero.to(torch.float16)
    same = all(map(torch.equal, given, (t.to(torch.float32) for t in made)))
    return made if same and scale.shape[1] % 2 == 0 else given


def product_into(x: Tensor, dense: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Write ``x @ dense.T + bias`` to ``out``, rounded once."""
    if out.dtype != x.dtype:
        out.copy_(torch.mm(x, dense.t(), out_dtype=out.dtype))
        if bias is not None:
            out.add_(bias)
    elif bias is None:
        torch.mm(x, dense.t(), out=out)
    else:
        torch.addmm(bias.to(x.dtype), x, dense.t(), out=out)


@lru_cache(maxsize=1 << 12)
def execution(packing: Packing, n: int, k: int, device: int, alone: bool) -> PackedExecution:
    """Return what runs layers [n, k] of ``packing`` on GPU ``device``."""
    return PackedExecution(packing, n, k, device, alone)
