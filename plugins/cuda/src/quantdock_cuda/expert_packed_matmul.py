"""Launching ``expert_packed_kernel``: what is fixed for a layer and a tile is worked out once."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from quantdock_cuda.device import device_of
from quantdock_cuda.expert_packed_kernel import packed_experts
from quantdock_cuda.packed_matmul import (
    RolesForm,
    RolesTile,
    form_of,
    layout_of,
    readable,
    registers_of,
)
from quantdock_triton.launcher import Launcher, is_aligned
from quantdock_triton.packed_layout import ROWS, Packing
from quantdock_triton.route import Routing

_HALVED = 64  # rows of tiles from which those that are half empty are computed as such


def forms_of(packing: Packing, tile: RolesTile, k: int) -> tuple[RolesForm, RolesForm | None]:
    """Return what the kernel is compiled for, and that of tiles that are half empty, if any are."""
    tail = -(-(k % packing.columns) // packing.plane)
    form = replace(form_of(packing, tile), tail=tail)
    return form, replace(form, m=form.m // 2) if form.m >= _HALVED else None


class PackedRoles:
    """Products with packed codes of each expert, of K columns, in one tiling; by ``packed_roles``.

    Args:
        is_first: of w13: the result is sorted by expert, as x is, or x has a row for each token
            where nothing is sorted; else the result has the pairs as they are numbered.
    """

    def __init__(self, packing: Packing, tile: RolesTile, k: int, *, is_first: bool) -> None:
        self._k, self._tile, self._is_first = k, tile, is_first
        self._plane, self._steps = packing.plane, packing.blocks(1, k)[1]
        self._layout = layout_of(packing.plane)
        registers, others = registers_of(tile)
        options = {"num_warps": 4, "maxnreg": registers, "launch_pdl": True}
        form, half = forms_of(packing, tile, k)
        self._launchers = {
            direct: Launcher(packed_experts, (form, half, others, direct, is_first), **options)
            for direct in (False, True)
        }

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
        """Write the products to ``out`` [pairs, N].

        Shapes:
            x: bfloat16 or float16 [rows, K]. words: int16
            [E, rows of blocks, blocks, 64, plane]. scale: f32 [E, groups, N], or one for each row;
            zero likewise, or None. stored: scales that are bytes, int32 [E, rows of blocks,
            blocks, runs of a plane, 64], or None. bias: [E, N].
        """
        tile, plane, (num_experts, groups, n) = self._tile, self._plane, scale.shape
        num_items = routing.num_tiles * -(-n // (tile.groups * ROWS))
        x = readable(x)
        device, direct = x.get_device(), routing.is_direct
        most = num_items if direct else tile.resident * device_of(device).num_sms
        box = [tile.m, tile.taken * plane]
        self._launchers[direct](
            (device, x.dtype, out.dtype, routing.plan.dtype, n, is_aligned(out), is_aligned(scale),
             is_aligned(stored), is_aligned(routing.plan),
             None if zero is None else is_aligned(zero),
             None if bias is None else (bias.dtype, is_aligned(bias))),
            (min(num_items, most), 1),
            TensorDescriptor.from_tensor(words.view(-1, plane), [ROWS, plane], self._layout),
            TensorDescriptor(x, [x.shape[0], self._k], [x.stride(0), 1], box, self._layout),
            scale, zero, stored, bias, out, routing.plan,
            None if direct or self._is_first else routing.order, routing.num_tiles, num_experts, n,
            self._steps, routing.top_k, groups, n, 1,
        )  # fmt: skip


@lru_cache(maxsize=4096)
def packed_roles(packing: Packing, tile: RolesTile, k: int, is_first: bool) -> PackedRoles:
    """Return what multiplies by experts' weights of ``k`` columns in tiles of ``tile``."""
    return PackedRoles(packing, tile, k, is_first=is_first)
