"""The experts of one layer on a GPU: kernels in a row, and nobody waits for any of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from quantdock.schemes import parse_scheme
from quantdock_cuda.device import counters, device_of
from quantdock_cuda.expert_packed_products import (
    PackedFloatProducts,
    PackedProducts,
    SmallFloatProducts,
)
from quantdock_cuda.expert_products import Input, PairProducts, Products, ScaledProducts
from quantdock_cuda.expert_tiles import bucket
from quantdock_cuda.replays import Replays
from quantdock_triton.expert_ends import Gate, Sums
from quantdock_triton.gate import gated
from quantdock_triton.matmul import NUM_COUNTERS
from quantdock_triton.route import Routing, route, route_directly, sum_of_pairs

# A token's experts differ, and so many times more experts than pairs mostly do: nothing to sort.
_FEW = 4
_ALONE_ROWS = 8  # whose tile is taken for any number
_EARLY_ROWS = 8  # of an expert, up to which kernels had better start while those before them end
_FUSED_GATE = ("silu", "gate_up")  # which quantization computes by itself
PRODUCTS: dict[
    str, type[ScaledProducts | SmallFloatProducts | PackedProducts | PackedFloatProducts]
] = {
    "scaled": ScaledProducts,
    "small_float": SmallFloatProducts,
    "packed": PackedProducts,
    "packed_float": PackedFloatProducts,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """What experts compute, in words of the core, and which products they take.

    Attributes:
        products: key of PRODUCTS. schemes: of w13 and of w2, spelled.
        activation, order: as in ExpertProblem. intermediate: I, the input features of w2.
        alone: each token is computed as if it were alone: in tiles of one kind for any number.
    """

    products: str
    schemes: tuple[str, str]
    activation: str
    order: str
    num_experts: int
    hidden: int
    intermediate: int
    alone: bool = False


class ExpertExecution:
    """Runs the experts of layers of one kind on one GPU; made by ``execution``."""

    def __init__(self, experts: Experts, w13: Products, w2: Products, device: int) -> None:
        self._experts, self._w13, self._w2 = experts, w13, w2
        self._early = "dependent_launch" in device_of(device).features
        self._replays, self._device = Replays(self._in_row, device), device
        i = experts.intermediate
        self._n = i if experts.order == "up" else 2 * i
        self._fuses_gate = (experts.activation, experts.order) == _FUSED_GATE
        self._gate = Gate(
            name=experts.activation,
            order=experts.order,
            is_rounded=self._fuses_gate and w2.fuses_silu,
        )
        self._pairs: tuple[PairProducts, PairProducts] | None = None
        if w13.pairs and w2.pairs and not experts.alone:
            self._pairs = w13.pairs, w2.pairs

    def __call__(
        self,
        x: Tensor,
        weights: Tensor,
        ids: Tensor,
        others: Sequence[Any],
        dtype: torch.dtype,
    ) -> Tensor:
        """Return the sum of each token's experts, in ``dtype``.

        Shapes:
            x: [T, H], T >= 1, columns side by side. weights, ids: [T, k], contiguous.
            others: stacked tensors of w13 in the order of the products' NAMES, its biases [E, N],
            and those of w2.
        """
        experts, num_pairs = self._experts, ids.numel()
        is_direct = x.shape[0] == 1 or _FEW * num_pairs <= experts.num_experts
        if is_direct and self._pairs is not None:
            return self._of_pairs(self._pairs, x, weights, ids, others, dtype)
        *w13, w13_bias = others[: len(others) // 2]
        *w2, w2_bias = others[len(others) // 2 :]
        make = route_directly if is_direct else route
        rows = 0 if is_direct else bucket(num_pairs, experts.num_experts)
        early = self._early and rows <= _EARLY_ROWS
        rows = _ALONE_ROWS if experts.alone else rows
        routing = make(ids, experts.num_experts, self._w13.height(rows), early)
        hidden = torch.empty((num_pairs, self._n), dtype=x.dtype, device=x.device)
        self._w13(self._w13.inputs(x, w13, routing, rows), w13, w13_bias, hidden, routing, rows)
        parts = torch.empty((num_pairs, experts.hidden), dtype=dtype, device=x.device)
        self._w2(self._gated(hidden, w2, routing, rows), w2, w2_bias, parts, routing, rows)
        return sum_of_pairs(parts, weights, ids, routing, dtype)

    def _of_pairs(
        self,
        pairs: tuple[PairProducts, PairProducts],
        x: Tensor,
        weights: Tensor,
        ids: Tensor,
        others: Sequence[Any],
        dtype: torch.dtype,
    ) -> Tensor:
        """Return the result by kernels that quantize their rows and compute the gate themselves.

        One token's pairs are added up by the second one too; more took longer so.
        """
        experts, middle, num_pairs = self._experts, len(others) // 2, ids.numel()
        *w13, w13_bias = others[:middle]
        *w2, w2_bias = others[middle:]
        routing = route_directly(ids, experts.num_experts, 1, self._early)
        inner = torch.empty((num_pairs, experts.intermediate), dtype=x.dtype, device=x.device)
        pairs[0](x, w13, w13_bias, inner, routing, gate=self._gate)
        parts = torch.empty((num_pairs, experts.hidden), dtype=dtype, device=x.device)
        counts = counters(self._device) if x.shape[0] == 1 else None
        if counts is None or experts.hidden > NUM_COUNTERS:
            pairs[1](inner, w2, w2_bias, parts, routing)
            return sum_of_pairs(parts, weights, ids, routing, dtype)
        result = torch.empty((1, experts.hidden), dtype=dtype, device=x.device)
        sums = Sums(result=result, weights=weights, counters=counts)
        pairs[1](inner, w2, w2_bias, parts, routing, sums=sums)
        return result

    def again(
        self, x: Tensor, weights: Tensor, ids: Tensor, others: Sequence[Any]
    ) -> Tensor | None:
        """Return the result in x's dtype as a call like it was computed before; None: none was.

        Shapes and dtypes of the experts' tensors follow from what ``execution`` was given, but for
        input scales, of which there is one for each part of w13 that is stored apart, and biases.
        """
        if not (weights.is_contiguous() and ids.is_contiguous()):
            return None
        middle = len(others) // 2
        w13_bias, w2_bias, w13_third, w2_third = (
            others[middle - 1], others[-1], others[2], others[-2]
        )  # fmt: skip
        kind = (
            x.shape, x.dtype, weights.dtype, ids.shape, ids.dtype,
            w13_bias is not None and w13_bias.dtype, w2_bias is not None and w2_bias.dtype,
            w13_third is not None and w13_third.shape, w2_third is not None and w2_third.shape,
        )  # fmt: skip
        return self._replays(kind, x, weights, ids, *others)

    def _in_row(self, x: Tensor, weights: Tensor, ids: Tensor, *others: Any) -> Tensor:
        return self(x, weights, ids, others, x.dtype)

    def _gated(self, hidden: Tensor, tensors: Sequence[Any], routing: Routing, rows: int) -> Input:
        """Return what w2 multiplies."""
        experts, w2 = self._experts, self._w2
        if self._fuses_gate and w2.fuses_silu:
            return w2.inputs(hidden, tensors, routing, rows, silu=True)
        size, activation, order = experts.intermediate, experts.activation, experts.order
        inner = gated(hidden, routing, size, activation, order)
        return w2.inputs(inner, tensors, routing, rows)


@lru_cache(maxsize=1 << 12)
def execution(experts: Experts, scale_rows: tuple[int, int], device: int) -> ExpertExecution:
    """Return what runs ``experts`` on GPU ``device``.

    Args:
        scale_rows: rows of the scales of w13, and of w2.
    """
    make = PRODUCTS[experts.products]
    i, h = experts.intermediate, experts.hidden
    sizes = ((i if experts.order == "up" else 2 * i, h), (h, i))
    w13, w2 = (
        make(parse_scheme(text), number, size, device, is_first)
        for text, number, size, is_first in zip(
            experts.schemes, scale_rows, sizes, (True, False), strict=True
        )
    )
    w13.has_roles = w2.has_roles = w13.has_roles and w2.has_roles
    return ExpertExecution(experts, w13, w2, device)
