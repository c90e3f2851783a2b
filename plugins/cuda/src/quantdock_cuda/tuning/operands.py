"""Operands of one product of codes, with weights enough that none is in the cache when its turn
comes."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from quantdock_cuda import block_matmul, library
from quantdock_cuda.libraries import LIBRARY
from quantdock_cuda.tuning.timing import Pool, num_copies, time_us
from quantdock_triton import matmul
from quantdock_triton.matmul import NUM_COUNTERS
from quantdock_triton.tile import Form, Tile

FEW_COPIES = 4  # where a product takes long enough to read its weight anyway


class Operands:
    """Codes and scales of x [M, K] and of weights [N, K], in one form."""

    def __init__(self, form: Form, m: int, n: int, k: int, pool: Pool) -> None:
        self.form, self.m, self.n, self.k = form, m, n, k
        rows = -(-m // 4) * 4
        groups = -(-k // form.x_cols) if form.x_cols else 1
        grid = (-(-n // form.weight_rows), -(-k // form.weight_cols) if form.weight_cols else 1)
        self.x = pool.codes(rows, k)
        self.x_scale = torch.rand(groups, rows, device="cuda").add_(0.5).t()
        self.weight_scale = torch.rand(grid, device="cuda").add_(0.5)
        copies = num_copies(n * k)
        self.weights = [pool.codes(n, k) for _ in range(copies if m <= 512 else FEW_COPIES)]
        self.out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
        self.counters = torch.zeros(NUM_COUNTERS, dtype=torch.int32, device="cuda")

    def run(self, way: str | Tile, weight: Tensor) -> Tensor:
        """Return the product with ``weight``, computed in one way."""
        if way == LIBRARY:
            return library.product(
                self.x, self.x_scale, weight, self.weight_scale, None, self.m, torch.bfloat16
            )
        assert isinstance(way, Tile), f"{way} is no tile"
        make = block_matmul.matmul if way.roles else matmul.matmul
        run = make(self.form, way, self.n, self.k, False)
        run(self.x, self.x_scale, weight, self.weight_scale, None, self.out, self.counters)
        return self.out

    def time(self, way: str | Tile, replays: int) -> float:
        """Return the microseconds of a product."""
        return time_us([partial(self.run, way, weight) for weight in self.weights], replays)

    def error(self, way: str | Tile) -> float:
        """Return |out - exact| / |exact| (Frobenius) of some rows, exact being f32 products."""
        rows = min(self.m, 64)
        found = self.run(way, self.weights[0])[:rows].float()
        x = self.x[:rows].float() * self._spread(self.x_scale[:rows], 1, self.form.x_cols)
        weight = self.weights[0].float() * self._spread(
            self.weight_scale, self.form.weight_rows, self.form.weight_cols
        )
        exact = x @ weight.t()
        return float((found - exact).norm() / exact.norm())

    def _spread(self, scale: Tensor, rows: int, columns: int) -> Tensor:
        if rows > 1:
            scale = scale.repeat_interleave(rows, 0)[: self.n]
        return scale.repeat_interleave(columns, 1)[:, : self.k] if columns else scale
