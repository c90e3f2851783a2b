"""Launching ``expert_kernel``: what is fixed for a layer and a tile is worked out once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from triton.runtime import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from quantdock_triton import matmul, packed_matmul
from quantdock_triton.expert_kernel import packed_experts, scaled_experts, small_float_experts
from quantdock_triton.launcher import Launcher, is_aligned
from quantdock_triton.packed_layout import Packing
from quantdock_triton.packed_matmul import PackedTile
from quantdock_triton.programs import key_of
from quantdock_triton.route import Routing
from quantdock_triton.small_float_matmul import FloatTile, SmallFloat
from quantdock_triton.tile import Form, Tile

# Triton's interpreter knows no machine code, and other devices have another.
_PTX = isinstance(small_float_experts, JITFunction) and torch.version.cuda is not None


class ScaledExperts:
    """Products with scaled codes [E, N, K] of one form, in one tiling; see ``scaled_experts``.

    Args:
        tile: with ``tma`` where K is a multiple of 16 and x is sorted.
        gathers: x has a row for each token; else one for each pair, sorted by expert.
        scatters: the result has a row for each pair as they are numbered; else they are sorted.
    """

    def __init__(
        self,
        form: Form,
        tile: Tile,
        n: int,
        k: int,
        *,
        has_bias: bool,
        gathers: bool,
        scatters: bool,
    ) -> None:
        self._n, self._k, self._tile = n, k, tile
        self._across = -(-n // tile.n)
        self._is_widened = form.weight_only
        assert not (tile.tma and (gathers or form.weight_only)), "descriptors are of sorted codes"
        block_k = form.block_k(tile.k)
        self._shapes = ([tile.m, block_k], [tile.n, block_k])
        constants = (*matmul.constants_of(form, tile, k, has_bias), tile.swap, tile.tma)
        options = {"num_warps": tile.warps, "num_stages": tile.stages}
        self._launchers = _launchers(scaled_experts, constants, (gathers, scatters), options)

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
        """Write the products to ``out`` [pairs, N].

        Shapes:
            x: codes [rows, K], or float with a weight-only form. x_scale: f32 [rows, groups] or
            None. weight: codes [E, N, K]. weight_scale: f32 [E, rows, groups]. bias: [E, N].
        """
        x_row, x_group = (0, 0) if x_scale is None or x_scale.numel() == 1 else x_scale.stride()
        expert, row, group = weight_scale.stride()
        row, group = (0, 1) if weight_scale.shape[1] == 1 else (row, group)
        stride = x.stride(0)
        a: Any = x
        b: Any = weight.view(torch.uint8) if self._is_widened else weight
        if self._tile.tma:
            rows, k = weight.shape[0] * self._n, self._k
            a = TensorDescriptor(x, [x.shape[0], k], [k, 1], self._shapes[0])
            b = TensorDescriptor(weight.view(rows, k), [rows, k], [k, 1], self._shapes[1])
        self._launchers[routing.is_direct, routing.early](
            (*key_of(x, stride), out.dtype, *routing.key, is_aligned(weight), x_row,
             is_aligned(x_scale), expert, row, group, is_aligned(weight_scale), _kind(bias)),
            (routing.num_tiles * self._across, 1),
            a, b, out, x_scale, weight_scale, bias, routing.plan, routing.order,
            routing.num_experts, routing.num_tiles, routing.top_k, self._n, self._k, stride,
            self._n, x_row, x_group, expert, row, group,
        )  # fmt: skip


class SmallFloatExperts:
    """Products with codes of 4 or 6 bits in words [E, N, words]; see ``small_float_experts``."""

    def __init__(
        self, kind: SmallFloat, tile: FloatTile, k: int, *, gathers: bool, scatters: bool
    ) -> None:
        self._k, self._tile = k, tile
        options = {"num_warps": tile.warps, "num_stages": tile.stages}
        constants = (*kind.constants, _PTX, tile.m, tile.n)
        self._launchers = _launchers(small_float_experts, constants, (gathers, scatters), options)

    def __call__(
        self,
        x: Tensor,
        words: Tensor,
        scale: Tensor,
        second: Tensor | None,
        bias: Tensor | None,
        out: Tensor,
        routing: Routing,
    ) -> None:
        """Write the products to ``out`` [pairs, N].

        Shapes:
            x: bfloat16 or float16 [rows, K]. words: int16 [E, N, words]; scale: uint8 [E, N,
            scales of runs]; second: f32 [E, N]; bias: [E, N].
        """
        _, n, num_words = words.shape
        stride = x.stride(0)
        self._launchers[routing.is_direct, routing.early](
            (*key_of(x, stride), out.dtype, *routing.key, n, is_aligned(words), is_aligned(scale),
             _kind(second), _kind(bias)),
            (routing.num_tiles * -(-n // self._tile.n), 1),
            x, words, scale, second, bias, out, routing.plan, routing.order,
            routing.num_experts, routing.num_tiles, routing.top_k, n, self._k, stride, num_words,
            scale.shape[2], n,
        )  # fmt: skip


class PackedExperts:
    """Products with packed integer codes of each expert; see ``packed_experts``."""

    def __init__(
        self, packing: Packing, tile: PackedTile, k: int, *, gathers: bool, scatters: bool
    ) -> None:
        self._k, self._tile = k, tile
        self._steps = packing.blocks(1, k)[1]
        constants = packed_matmul.constants_of(packing, tile, k)
        options = {"num_warps": tile.warps, "num_stages": tile.stages}
        self._launchers = _launchers(packed_experts, constants, (gathers, scatters), options)

    def __call__(
        self,
        x: Tensor,
        words: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        bias: Tensor | None,
        out: Tensor,
        routing: Routing,
    ) -> None:
        """Write the products to ``out`` [pairs, N].

        Shapes:
            x: bfloat16 or float16 [rows, K]. words: int16 [E, rows of blocks, blocks, 64, plane].
            scale: f32 [E, groups, N]; zero likewise, or None: the middle of the codes.
            bias: [E, N].
        """
        _, groups, n = scale.shape
        stride = x.stride(0)
        self._launchers[routing.is_direct, routing.early](
            (*key_of(x, stride), out.dtype, *routing.key, is_aligned(words), is_aligned(out),
             is_aligned(scale), _kind(zero), _kind(bias)),
            (routing.num_tiles * -(-n // self._tile.n), 1),
            x, words, scale, zero, bias, out, routing.plan, routing.order,
            routing.num_experts, routing.num_tiles, routing.top_k, n, self._k, self._steps,
            groups, stride, n, n,
        )  # fmt: skip


def _launchers(
    kernel: object, constants: tuple[object, ...], rows: tuple[bool, bool], options: dict[str, int]
) -> dict[tuple[bool, bool], Launcher]:
    """Return the launchers of a kernel, by ``is_direct`` and ``early`` of a routing."""
    return {
        (direct, early): Launcher(
            kernel,
            (*constants, direct, *rows, early),
            **options | ({"launch_pdl": True} if early else {}),
        )
        for direct in (False, True)
        for early in (False, True)
    }


def _kind(tensor: Tensor | None) -> tuple[torch.dtype, bool] | None:
    return None if tensor is None else (tensor.dtype, is_aligned(tensor))


@lru_cache(maxsize=4096)
def scaled(
    form: Form, tile: Tile, n: int, k: int, has_bias: bool, gathers: bool, scatters: bool
) -> ScaledExperts:
    """Return what multiplies by experts' weights [n, k] of ``form`` in tiles of ``tile``."""
    return ScaledExperts(form, tile, n, k, has_bias=has_bias, gathers=gathers, scatters=scatters)


@lru_cache(maxsize=4096)
def small_float(
    kind: SmallFloat, tile: FloatTile, k: int, gathers: bool, scatters: bool
) -> SmallFloatExperts:
    """Return what multiplies by experts' weights of ``k`` columns in tiles of ``tile``."""
    return SmallFloatExperts(kind, tile, k, gathers=gathers, scatters=scatters)


@lru_cache(maxsize=4096)
def packed(
    packing: Packing, tile: PackedTile, k: int, gathers: bool, scatters: bool
) -> PackedExperts:
    """Return what multiplies by experts' weights of ``k`` columns in tiles of ``tile``."""
    return PackedExperts(packing, tile, k, gathers=gathers, scatters=scatters)
