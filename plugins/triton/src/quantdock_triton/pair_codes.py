"""Launching ``pair_codes_kernel``: codes of pairs, sorted by expert."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from quantdock.formats import ELEMENTS
from quantdock.numerics import torch_dtype
from quantdock_triton.launcher import Launcher, is_aligned, launch_options
from quantdock_triton.pair_codes_kernel import gather_codes, quantize_pairs
from quantdock_triton.programs import key_of, power_above
from quantdock_triton.route import Routing

_WIDTH = 256  # columns of a tile that a program works on
_COPIED = 1024  # that it copies


@lru_cache(maxsize=256)
def _launcher(
    element: str, num: int, direct: bool, gathers: bool, tile_m: int, ptx: bool, early: bool
) -> Launcher:
    kind = ELEMENTS[element]
    sizes = (num, power_above(num), direct, gathers, tile_m, _WIDTH)
    constants = (*sizes, kind.lowest, kind.largest, ptx, early)
    return Launcher(quantize_pairs, constants, **launch_options(early, 4))


def codes_of_pairs(
    x: Tensor, input_scale: Tensor, element: str, routing: Routing, *, gathers: bool, ptx: bool
) -> tuple[Tensor, Tensor]:
    """Return the codes [pairs, K] of each pair's row by its expert's scale, sorted, and scales.

    Shapes:
        x: float [tokens, K] where ``gathers``, else [pairs, K] sorted; columns side by side.
        input_scale: f32 [E, num], of which the largest counts. Returns scales [pairs, 1].
    """
    k, stride = x.shape[1], x.stride(0)
    num_pairs, device = routing.order.shape[0], x.device
    codes = torch.empty((num_pairs, k), dtype=torch_dtype(ELEMENTS[element].storage), device=device)
    scales = torch.empty((num_pairs, 1), dtype=torch.float32, device=device)
    num = input_scale.shape[1]
    _launcher(element, num, routing.is_direct, gathers, routing.tile_m, ptx, routing.early)(
        (*key_of(x, stride), *routing.key, is_aligned(input_scale), k),
        (routing.num_tiles, -(-k // _WIDTH)),
        x, codes, scales, input_scale, routing.plan, routing.order,
        routing.num_experts, routing.num_tiles, routing.top_k, k, stride,
    )  # fmt: skip
    return codes, scales


@lru_cache(maxsize=256)
def _copier(groups: int, tile_m: int, early: bool) -> Launcher:
    constants = (tile_m, _COPIED, power_above(groups), early)
    return Launcher(gather_codes, constants, **launch_options(early, 8))


def gathered(codes: Tensor, scales: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """Return the codes of each pair's token [pairs, K], sorted by expert, and their scales.

    Shapes:
        codes: 8-bit [tokens or more, K], contiguous. scales: f32 [tokens or more, groups].
    """
    (_, k), groups, device = codes.shape, scales.shape[1], codes.device
    num_pairs = routing.order.shape[0]
    result = torch.empty((num_pairs, k), dtype=codes.dtype, device=device)
    size = (num_pairs, groups)
    result_scales = torch.empty_strided(size, (1, num_pairs), dtype=torch.float32, device=device)
    row, group = scales.stride()
    _copier(groups, routing.tile_m, routing.early)(
        (codes.get_device(), is_aligned(codes), is_aligned(scales), *routing.key, k, row, groups),
        (routing.num_tiles, -(-k // _COPIED)),
        codes.view(torch.uint8), scales, result.view(torch.uint8), result_scales, routing.plan,
        routing.order, routing.num_experts, routing.num_tiles, routing.top_k, k, groups, row, group,
        num_pairs,
    )  # fmt: skip
    return result, result_scales
