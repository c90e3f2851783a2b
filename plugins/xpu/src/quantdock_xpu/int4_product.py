"""Weight-only 4-bit integers through PyTorch's own XPU operator, which calls oneDNN.

``aten::_weight_int4pack_mm_with_scales_and_zeros`` computes ``scale * (code - zero)`` as it reads
the codes. Source of its layout: aten/src/ATen/native/mkldnn/xpu/Blas.cpp and the packing kernel of
torch-xpu-ops: codes int32 [N, K / 8], eight a word from the lowest bits up; scales [groups, N] in
x's dtype; zero points int8 [groups, N]; groups are multiples of 32 columns and divide K; x is
contiguous [M, K].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import ELEMENTS
from quantdock.kernel import Problem
from quantdock.kernels.layout import Grid, codes_of, from_grid, grid_with, to_sorted_grid
from quantdock.kernels.ops import define
from quantdock.kernels.scaled_linear import result_shape
from quantdock.kernels.stored_inputs import stored_inputs
from quantdock.numerics import CanonicalWeight, pack_bits, torch_dtype, unpack_bits

BITS = 4
SIGNED_ZERO = 8  # the zero point of signed codes, once they are stored unsigned
USUAL_DTYPE = "bfloat16"


class Int4Product:
    """Runs 4-bit weights with scales per channel or group, and 16-bit activations."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._spec = problem.scheme.weight
        self._dtype = torch_dtype(problem.dtype or USUAL_DTYPE)

    def prepare(self, weight: CanonicalWeight) -> dict[str, Tensor]:
        """Return ``weight`` as the operator wants it, and what going back needs.

        ``weight_words`` int32 [N, K / 8]; ``group_scale`` and ``group_zero`` [groups, N];
        ``weight_scale`` f32, exact; in act-order ``weight_order`` int32 [1 or segments, K];
        ``input_multiplier`` f32 [K] where the scheme has one.

        Raises:
            FormatError: groups in act-order are of unequal size, or a zero point is no int8.
        """
        grid = to_sorted_grid(weight, self._spec)
        codes = codes_of(grid).to(torch.int16) + self._offset
        tensors = {
            "weight_words": pack_bits(codes.to(torch.uint8), bits=BITS),
            "weight_scale": grid.scale,
            "group_scale": self._by_group(grid, grid.scale).to(self._dtype),
            "group_zero": self._by_group(grid, self._zero(grid)),
        }
        if grid.order is not None:
            tensors["weight_order"] = grid.order
        return {**tensors, **stored_inputs(self.problem.scheme, weight)}

    def restore(self, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the weight that ``prepare`` got, bit for bit."""
        scale, words = tensors["weight_scale"], tensors["weight_words"]
        codes = unpack_bits(words, bits=BITS, count=8 * words.shape[1]).to(torch.int16)
        storage = torch_dtype(ELEMENTS[self._spec.element].storage)
        _, repeats = self._split(8 * words.shape[1])
        first = tensors["group_zero"].T[:, ::repeats]
        grid = grid_with(
            (codes - self._offset).to(storage),
            scale,
            self._spec,
            self.problem.shards,
            zero=first.to(torch.int32) - self._offset if self._spec.zero else None,
            order=tensors.get("weight_order"),
        )
        return CanonicalWeight(
            segments=from_grid(grid), input_multiplier=tensors.get("input_multiplier")
        )

    def apply(self, tensors: Mapping[str, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``x @ weight.T + bias``; x is [..., K] of any strides, the result in its dtype."""
        words, scale, zero = (tensors[n] for n in ("weight_words", "group_scale", "group_zero"))
        shape = result_shape(x, words.shape[0], 8 * words.shape[1])
        rows = x.reshape(shape[:-1].numel(), x.shape[-1])
        if "input_multiplier" in tensors:
            rows = (rows * tensors["input_multiplier"]).to(x.dtype)
        order = tensors.get("weight_order")
        if shape.numel() == 0:
            return x.new_empty(shape)
        if order is None:
            result = _product(rows, words, scale, zero)
        elif order.shape[0] == 1:
            result = _product(rows.index_select(1, order[0]), words, scale, zero)
        else:
            result = torch.cat(self._by_segment(rows, words, scale, zero, order), dim=1)
        if bias is not None:
            result = (result + bias).to(x.dtype)
        return result.view(shape)

    def warmup(self, m_buckets: Sequence[int]) -> None:
        """Do nothing: oneDNN compiles at the first call of a shape."""

    @property
    def _offset(self) -> int:
        """Return what turns a code into the unsigned one that is stored."""
        return SIGNED_ZERO if ELEMENTS[self._spec.element].storage == "int8" else 0

    def _zero(self, grid: Grid) -> Tensor:
        """Return the zero points of the stored codes, int8, as the scale."""
        if grid.zero is None:
            return torch.full_like(grid.scale, self._offset, dtype=torch.int8)
        zero = grid.zero.to(torch.int32) + self._offset
        if bool((zero != zero.to(torch.int8)).any()):
            raise FormatError(
                f"A {self._spec} weight has zero points from {int(zero.min())} to "
                f"{int(zero.max())}.",
                why=["oneDNN's int4 product takes them as int8"],
                todo="Set QUANTDOCK_KERNEL=reference to run the slow path.",
            )
        return zero.to(torch.int8)

    def _by_group(self, grid: Grid, values: Tensor) -> Tensor:
        """Return ``values`` [N, groups] as [groups, N]; a group that does not divide K is split."""
        group, repeats = self._split(grid.k)
        return values.repeat_interleave(repeats, dim=1)[:, : grid.k // group].T.contiguous()

    def _split(self, k: int) -> tuple[int, int]:
        """Return the columns of a group for the operator, and how many of them a tile is."""
        columns = min(self._spec.cols or k, k)
        return gcd(columns, k), columns // gcd(columns, k)

    def _by_segment(
        self, rows: Tensor, words: Tensor, scale: Tensor, zero: Tensor, order: Tensor
    ) -> list[Tensor]:
        """Return the results of fused shards whose columns have orders of their own."""
        results, start = [], 0
        for own, n in zip(order, self.problem.shards, strict=True):
            part = slice(start, start + n)
            by_group = (scale[:, part].contiguous(), zero[:, part].contiguous())
            results.append(_product(rows.index_select(1, own), words[part], *by_group))
            start += n
        return results


def int4_product(rows: Tensor, words: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Return ``rows @ (scale * (code - zero)).T``.

    Shapes:
        rows: [M, K]. words: int32 [N, K / 8]. scale, zero: [groups, N]. Returns [M, N].
    """
    group = rows.shape[1] // scale.shape[0]
    result: Tensor = torch.ops.aten._weight_int4pack_mm_with_scales_and_zeros(
        rows.contiguous(), words, group, scale, zero
    )
    return result


def _product(rows: Tensor, words: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Return the same, by way of the operator that has a gradient where one is wanted."""
    wants_gradient = torch.is_grad_enabled() and rows.requires_grad
    return (XPU_INT4_PRODUCT if wants_gradient else int4_product)(rows, words, scale, zero)


def _gradient(gradient: Tensor, words: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Return the gradient of x [M, K] from that of the result [M, N]."""
    k = 8 * words.shape[1]
    codes = unpack_bits(words, bits=BITS, count=k).to(torch.float32)
    scale, zero = (t.T.float().repeat_interleave(k // len(t), dim=1) for t in (scale, zero))
    return (gradient.float() @ ((codes - zero) * scale)).to(gradient.dtype)


def _empty_product(rows: Tensor, words: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return rows.new_empty((len(rows), len(words)))


XPU_INT4_PRODUCT = define(
    "xpu_int4_product",
    "(Tensor x, Tensor words, Tensor scale, Tensor zero) -> Tensor",
    int4_product,
    _empty_product,
    _gradient,
)
