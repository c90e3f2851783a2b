"""Launching ``expert_block_kernel``: what is fixed for a layer and a tile is worked out once."""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from quantdock_cuda import expert_block_kernel
from quantdock_cuda.block_matmul import LAYOUT, STEP, registers_of
from quantdock_cuda.device import device_of
from quantdock_triton.launcher import Launcher, is_aligned
from quantdock_triton.route import Routing
from quantdock_triton.tile import Form, Tile


class ExpertBlocks:
    """Products of sorted e4m3 codes with those of each expert [E, N, K], in one tiling."""

    def __init__(
        self, form: Form, tile: Tile, n: int, k: int, *, has_bias: bool, scatters: bool
    ) -> None:
        self._n, self._k, self._tile = n, k, tile
        self._across, self._steps = -(-n // tile.n), -(-k // STEP)
        registers, others = registers_of(tile)
        options = {"num_warps": 4, "maxnreg": registers, "launch_pdl": True}
        constants = (tile, form.weight_rows, has_bias, scatters, others)
        self._launcher = Launcher(expert_block_kernel.expert_blocks, constants, **options)

    def __call__(
        self,
        x: Tensor,
        x_scale: Tensor | None,
        weight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None,
        out: Tensor,
        routing: Routing,
    ) -> None:
        """Write the products to ``out`` [pairs, N]; shapes as for ``ScaledExperts``, x sorted."""
        assert x_scale is not None, "blocks of x have scales"
        tile, k, rows = self._tile, self._k, weight.shape[0] * self._n
        a = TensorDescriptor(x, [x.shape[0], k], [k, 1], [tile.m, STEP], LAYOUT)
        b = TensorDescriptor(weight.view(rows, k), [rows, k], [k, 1], [tile.n, STEP], LAYOUT)
        num_items, device = routing.num_tiles * self._across, x.get_device()
        group = x_scale.stride(1) if x_scale.shape[1] > 1 else 0
        self._launcher(
            (device, out.dtype, is_aligned(out), is_aligned(x_scale), is_aligned(weight_scale),
             is_aligned(routing.plan), None if bias is None else (bias.dtype, is_aligned(bias))),
            (min(num_items, tile.resident * device_of(device).num_sms), 1),
            a, b, out, x_scale, weight_scale, bias, routing.plan, routing.order, x_scale.shape[0],
            self._n, self._steps, routing.num_tiles, num_items, group, weight_scale.stride(0),
            weight_scale.stride(1),
        )  # fmt: skip


@lru_cache(maxsize=4096)
def scaled_blocks(
    form: Form, tile: Tile, n: int, k: int, has_bias: bool, scatters: bool
) -> ExpertBlocks:
    """Return what multiplies by experts' weights [n, k] of ``form`` in tiles of ``tile``."""
    return ExpertBlocks(form, tile, n, k, has_bias=has_bias, scatters=scatters)
