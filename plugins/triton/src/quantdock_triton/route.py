"""Which rows each expert multiplies, in tiles: made on the device, of a size the host knows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from quantdock_triton import route_kernel as kernels
from quantdock_triton.launcher import Launcher, is_aligned, launch_options
from quantdock_triton.programs import power_above

_LEAST_BINS = 32
_CHUNK = (128, 4096)  # pairs that a program looks at together, least and most
# Pairs times experts, of which there are 128 at least, up to which a program looks at all pairs;
# where there are more, each program has some of them.
_MOST_AT_ONCE = 1 << 20
_MANY_CHUNK = 512
_PAIRS_PER_WARP = 256
_MOST_WARPS = 8
_WIDTH = 1024  # columns of a sum that a program adds up


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The tokens of one call, sorted by expert.

    Shapes:
        order: int32 [pairs], those of expert 0 first. plan: int32 [3 * num_tiles + 2]: of each
        tile its expert (-1: there is none), where in ``order`` it begins and where its expert's
        pairs end; then how many pairs have an expert, and how many tiles do. Where every pair is
        a tile by itself (``is_direct``), the plan is the ids, [pairs], and nothing is sorted.
    """

    order: Tensor
    plan: Tensor
    num_experts: int
    num_tiles: int
    top_k: int
    tile_m: int
    is_direct: bool = False
    early: bool = False  # kernels start while those before them end; NVIDIA's can from sm_90 on

    @property
    def key(self) -> tuple[object, ...]:
        """Return what of the plan and the order a compiled kernel depends on."""
        return self.plan.dtype, is_aligned(self.plan)

    @property
    def count(self) -> Tensor | None:
        """Return how many pairs have an expert, int32 [1], the first ones; None: not known."""
        return None if self.is_direct else self.plan[-2:-1]


def most_tiles(num_pairs: int, num_experts: int, tile_m: int) -> int:
    """Return how many tiles of ``tile_m`` rows so many pairs may need, however they are sent."""
    begun = min(num_pairs, num_experts)
    return begun + (num_pairs - begun) // tile_m


@lru_cache(maxsize=256)
def _counter(num_experts: int, early: bool) -> Launcher:
    constants = (_bins(num_experts), _MANY_CHUNK, early)
    return Launcher(kernels.count_pairs, constants, **launch_options(early, 4))


@lru_cache(maxsize=256)
def _placer(num_experts: int, tile_m: int, early: bool) -> Launcher:
    constants = (tile_m, _bins(num_experts), _MANY_CHUNK, early)
    return Launcher(kernels.place_pairs, constants, **launch_options(early, 4))


def _bins(num_experts: int) -> int:
    return max(power_above(num_experts), _LEAST_BINS)


@lru_cache(maxsize=256)
def _router(num_experts: int, tile_m: int, chunk: int, early: bool) -> Launcher:
    bins = _bins(num_experts)
    warps = min(max(chunk // _PAIRS_PER_WARP, 1), _MOST_WARPS)
    options = launch_options(early, warps)
    return Launcher(kernels.route, (tile_m, bins, chunk, early), **options)


def route(ids: Tensor, num_experts: int, tile_m: int, early: bool = False) -> Routing:
    """Return the pairs of ``ids``, int [T, k] and contiguous, T >= 1, in tiles of ``tile_m``.

    An id below 0, or of ``num_experts`` and more, is no expert's.

    Args:
        early: this kernel, and those that are given the routing, start while those before end.
    """
    num_pairs, device = ids.numel(), ids.device
    num_tiles = most_tiles(num_pairs, num_experts, tile_m)
    order = torch.empty(num_pairs, dtype=torch.int32, device=device)
    plan = torch.empty(3 * num_tiles + 2, dtype=torch.int32, device=device)
    key = (ids.get_device(), ids.dtype, is_aligned(ids))
    sizes = (num_pairs, num_experts, num_tiles)
    if num_pairs * max(_bins(num_experts), _CHUNK[0]) > _MOST_AT_ONCE:
        num_chunks = -(-num_pairs // _MANY_CHUNK)
        counts = torch.empty((num_chunks, _bins(num_experts)), dtype=torch.int32, device=device)
        _counter(num_experts, early)(key, (num_chunks, 1), ids, counts, *sizes[:2])
        _placer(num_experts, tile_m, early)(key, (num_chunks, 1), ids, counts, order, plan, *sizes)
    else:
        chunk = min(max(power_above(num_pairs), _CHUNK[0]), _CHUNK[1])
        run = _router(num_experts, tile_m, chunk, early)
        run(key, (num_experts + 1, 1), ids, order, plan, *sizes)
    return Routing(
        order=order,
        plan=plan,
        num_experts=num_experts,
        num_tiles=num_tiles,
        top_k=ids.shape[1],
        tile_m=tile_m,
        early=early,
    )


def route_directly(ids: Tensor, num_experts: int, tile_m: int, early: bool = False) -> Routing:
    """Return the pairs of ``ids`` as they are, each a tile: for few, which share no expert."""
    pairs = ids.view(-1)
    return Routing(
        order=pairs,
        plan=pairs,
        num_experts=num_experts,
        num_tiles=ids.numel(),
        top_k=ids.shape[1],
        tile_m=tile_m,
        is_direct=True,
        early=early,
    )


@lru_cache(maxsize=256)
def _summer(top_k: int, width: int, early: bool) -> Launcher:
    options = launch_options(early, 4)
    return Launcher(kernels.sum_of_pairs, (top_k, width, early), **options)


def sum_of_pairs(
    parts: Tensor, weights: Tensor, ids: Tensor, routing: Routing, dtype: torch.dtype
) -> Tensor:
    """Return the sum [T, N] over each token's pairs in ``parts`` [T * k, N], times their weights.

    Shapes:
        weights: float [T, k]; ids: int [T, k]; both contiguous. Pairs of no expert add nothing.
    """
    (tokens, top_k), n = ids.shape, parts.shape[1]
    out = torch.empty((tokens, n), dtype=dtype, device=parts.device)
    width = min(power_above(n), _WIDTH)
    _summer(top_k, width, routing.early)(
        (parts.get_device(), parts.dtype, weights.dtype, ids.dtype, dtype, is_aligned(weights),
         is_aligned(ids), n % 16, n == 1),
        (tokens, -(-n // width)),
        parts, weights, ids, out, routing.num_experts, n,
    )  # fmt: skip
    return out
