"""Operands of one product of codes, with weights enough that none is in the cache when its turn
comes."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

from quantdock.formats import ELEMENTS
from quantdock.numerics import torch_dtype
from quantdock_cuda import block_matmul, libraries
from quantdock_cuda.device import device_of
from quantdock_cuda.tables import Way
from quantdock_cuda.tuning.timing import Pool, num_copies, time_us
from quantdock_cuda.unpacked import UNPACK, unpacked
from quantdock_triton import matmul
from quantdock_triton.matmul import NUM_COUNTERS
from quantdock_triton.tile import Form
from quantdock_triton.widen import widener

FEW_COPIES = 4  # where a product takes long enough to read its weight anyway
_FEW_ROWS = 512
_COMPARED = 64  # rows of the result


class Operands:
    """x [M, K] and weights [N, K] of one form, with their scales; results are bf16.

    Args:
        one_scale: x and the weight have one scale each, for all.
    """

    def __init__(
        self, form: Form, m: int, n: int, k: int, pool: Pool, *, one_scale: bool = False
    ) -> None:
        self.form, self.m, self.n, self.k = form, m, n, k
        rows = -(-m // 4) * 4
        groups = -(-k // form.x_cols) if form.x_cols else 1
        grid = (-(-n // form.weight_rows), -(-k // form.weight_cols) if form.weight_cols else 1)
        x_grid, grid = ((1, 1), (1, 1)) if one_scale else ((groups, rows), grid)
        self.x, self.x_scale = self._codes(pool, rows, k), None
        if form.weight_only:
            self.x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
        else:
            self.x_scale = torch.rand(x_grid, device="cuda").add_(0.5).t()
        self.weight_scale = torch.rand(grid, device="cuda").add_(0.5)
        copies = num_copies(n * k) if m <= _FEW_ROWS else FEW_COPIES
        self.weights = [self._codes(pool, n, k) for _ in range(copies)]
        self.out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
        self.counters = torch.zeros(NUM_COUNTERS, dtype=torch.int32, device="cuda")

    def _codes(self, pool: Pool, rows: int, columns: int) -> Tensor:
        storage = torch_dtype(ELEMENTS[self.form.element].storage)
        return pool.codes(rows, columns).view(storage)

    def run(self, way: Way, weight: Tensor) -> Tensor:
        """Return the product with ``weight``, computed in one way."""
        if way == UNPACK:
            facts = device_of(torch.cuda.current_device())
            product = unpacked(self.form, facts, self.n, self.k)
            product(self.x, weight, self.weight_scale, None, self.out, self.counters)
            return self.out
        if isinstance(way, str):
            return self._by_library(way, weight)
        make = block_matmul.matmul if way.roles else matmul.matmul
        run = make(self.form, way, self.n, self.k, False)
        run(self.x, self.x_scale, weight, self.weight_scale, None, self.out, self.counters)
        return self.out

    def _by_library(self, name: str, weight: Tensor) -> Tensor:
        if self.x_scale is None:
            widen = widener(self.form, self.n, self.k)
            return linear(self.x, widen(weight, self.weight_scale, self.x.dtype))
        product = libraries.load(name)
        if product is None:
            raise RuntimeError(f"{name} cannot be imported")
        dtype = self.out.dtype
        return product(self.x, self.x_scale, weight, self.weight_scale, None, self.m, dtype)

    def time(self, way: Way, replays: int) -> float:
        """Return the microseconds of a product."""
        return time_us([partial(self.run, way, weight) for weight in self.weights], replays)

    def error(self, way: Way) -> float:
        """Return |out - exact| / |exact| (Frobenius) of some rows, exact being f32 products."""
        rows = min(self.m, _COMPARED)
        found = self.run(way, self.weights[0])[:rows].float()
        x = self.x[:rows].float()
        if self.x_scale is not None:
            x = x * self._spread(self.x_scale[:rows], 1, self.form.x_cols)
        weight = self.weights[0].float() * self._spread(
            self.weight_scale, self.form.weight_rows, self.form.weight_cols
        )
        exact = x @ weight.t()
        return float((found - exact).norm() / exact.norm())

    def _spread(self, scale: Tensor, rows: int, columns: int) -> Tensor:
        if rows > 1:
            scale = scale.repeat_interleave(rows, 0)[: self.n]
        return scale.repeat_interleave(columns, 1)[:, : self.k] if columns else scale
