"""Launching ``expert_stream_kernel``: what is fixed for a layer and a tile is worked out once."""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor

from quantdock_cuda.expert_stream_kernel import stream_experts
from quantdock_cuda.packed_stream import StreamTile, form_of, readable
from quantdock_triton.launcher import Launcher, is_aligned
from quantdock_triton.packed_layout import Packing
from quantdock_triton.programs import key_of
from quantdock_triton.route import Routing


class StreamExperts:
    """Products with packed codes of each expert, of K columns, in one tiling; by ``streamed``.

    Args:
        is_first: of w13; as of ``stream_experts``.
    """

    def __init__(self, packing: Packing, tile: StreamTile, k: int, *, is_first: bool) -> None:
        self._packing, self._tile, self._k = packing, tile, k
        self._is_first, self._steps = is_first, packing.blocks(1, k)[1]
        self._launchers: dict[tuple[bool, bool], Launcher] = {}

    def __call__(
        self,
        x: Tensor,
        words: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        stored: Tensor | None,
        bias: Tensor | None,
        out: Tensor,
        routing: Routing,
    ) -> None:
        """Write the products to ``out`` [pairs, N]; shapes are as of ``PackedRoles``."""
        num_experts, groups, n = scale.shape
        x, rows = readable(x), self._tile.rows
        self._launcher(routing.is_direct, n % rows == 0)(
            (*key_of(x, x.stride(0)), out.dtype, *routing.key, is_aligned(words),
             is_aligned(out), is_aligned(scale), is_aligned(stored),
             None if zero is None else is_aligned(zero),
             None if bias is None else (bias.dtype, is_aligned(bias))),
            (routing.num_tiles * -(-n // rows), 1),
            words, x, scale, zero, stored, bias, out, routing.plan,
            None if routing.is_direct else routing.order, routing.num_tiles, num_experts,
            routing.top_k, n, self._k, self._steps, groups, x.stride(0),
        )  # fmt: skip

    def _launcher(self, is_direct: bool, whole_rows: bool) -> Launcher:
        found = self._launchers.get((is_direct, whole_rows))
        if found is None:
            form = form_of(self._packing, self._tile, self._k, 1, whole_rows)
            options = {"num_warps": self._tile.warps, "maxnreg": self._tile.registers}
            constants = (form, is_direct, self._is_first)
            found = Launcher(stream_experts, constants, **options | {"launch_pdl": True})
            self._launchers[is_direct, whole_rows] = found
        return found


@lru_cache(maxsize=4096)
def streamed(packing: Packing, tile: StreamTile, k: int, is_first: bool) -> StreamExperts:
    """Return what multiplies by experts' weights of ``k`` columns in tiles of ``tile``."""
    return StreamExperts(packing, tile, k, is_first=is_first)
