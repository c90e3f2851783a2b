"""One matrix of experts on a GPU: how its input is made, and how its tiles are multiplied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from quantdock.formats import QuantSpec
from quantdock.schemes import Scheme
from quantdock_cuda import expert_block_matmul
from quantdock_cuda.device import device_of
from quantdock_cuda.execution import form_of
from quantdock_cuda.expert_tiles import has_roles, scaled_tile
from quantdock_cuda.quantized_input import converts
from quantdock_triton import expert_matmul, expert_pairs
from quantdock_triton.expert_ends import NO_GATE, Gate, Sums
from quantdock_triton.pair_codes import codes_of_pairs, gathered
from quantdock_triton.quantize import Quantizer, quantizer
from quantdock_triton.route import Routing
from quantdock_triton.tile import Form, Tile

Input = tuple[Tensor, "Tensor | None"]  # codes and their scales, or floats


class Products(Protocol):
    """Products with the matrices [N, K] of experts, of one scheme.

    Attributes:
        fuses_silu: ``inputs`` takes gate and up side by side too, and computes silu(gate) * up.
        pairs: products of pairs that are not sorted, by which a layer takes two kernels; or None.
        has_roles: tiles may be those whose warps have roles, or those that stream words. Both
            products of a layer have tiles of one height, so where only one may, whoever pairs them
            says that neither does.
    """

    fuses_silu: bool
    pairs: PairProducts | None
    has_roles: bool

    def height(self, rows: int) -> int:
        """Return the rows of tiles, where experts have about so many rows."""
        ...

    def inputs(
        self, x: Tensor, tensors: Sequence[Any], routing: Routing, rows: int, *, silu: bool = False
    ) -> Input:
        """Return what is multiplied, of x [tokens or sorted pairs, K], or [..., 2K] with silu."""
        ...

    def __call__(
        self,
        x: Input,
        tensors: Sequence[Any],
        bias: Tensor | None,
        out: Tensor,
        routing: Routing,
        rows: int,
    ) -> None:
        """Write the products to ``out`` [pairs, N].

        Args:
            x: made by ``inputs``. tensors: stacked [E, ...], in the order of NAMES.
            rows: that experts have, about; as ``height`` was given them.
        """
        ...


@dataclass(frozen=True, slots=True)
class PairProducts:
    """Products of pairs with scaled codes, each pair a tile that quantizes its row of x.

    Attributes:
        is_first: of w13: x has a row for each token; else a row for each pair.
    """

    form: Form
    spec: QuantSpec | None
    tile: Tile
    n: int
    k: int
    ptx: bool
    is_first: bool

    def __call__(
        self,
        x: Tensor,
        tensors: Sequence[Any],
        bias: Tensor | None,
        out: Tensor,
        routing: Routing,
        *,
        gate: Gate = NO_GATE,
        sums: Sums | None = None,
    ) -> None:
        """Write the products to ``out`` [pairs, N], as they are numbered.

        Args:
            x: floats. tensors: as for ScaledProducts.
            gate, sums: what is done with the products besides.
        """
        layer = (self.form, self.spec, self.tile, self.n, self.k, self.ptx)
        run = expert_pairs.scaled(*layer, bias is not None, self.is_first, gate)
        run(x, tensors[0], tensors[1], bias, out, routing, sums)


class ScaledProducts:
    """8-bit codes, with activations quantized likewise or as given.

    Args:
        scale_rows: rows of the scales of each expert. sizes: N and K.
        is_first: of w13: x has a row for each token, and the results are sorted by expert; else
            x is that, and the results are the pairs as they are numbered.
    """

    NAMES = ("weight", "weight_scale", "input_scale")

    def __init__(
        self, scheme: Scheme, scale_rows: int, sizes: tuple[int, int], device: int, is_first: bool
    ) -> None:
        self._n, self._k = sizes
        self._facts, self._is_first = device_of(device), is_first
        self._form = form_of(scheme, scale_rows, self._n)
        self._spec, self._is_static = scheme.activation, scheme.is_static
        self._quantizers: list[Quantizer] = []  # of x; of gate and up
        self._ptx = False
        if self._spec is not None:
            self._ptx = converts(self._spec, self._facts.features)
        if self._spec is not None and not self._is_static:
            spec = self._spec = self._spec if self._spec.rows else replace(self._spec, rows=1)
            early = "dependent_launch" in self._facts.features and spec.cols is not None
            for silu in (False, True):
                self._quantizers.append(quantizer(spec, self._k, 0, self._ptx, silu, early=early))
        self.fuses_silu = bool(self._quantizers)
        layer = (self._form, self._spec, scaled_tile(self._form, self._facts, self._k, 0))
        whole = (*layer, self._n, self._k, self._ptx, is_first)
        self.pairs: PairProducts | None = None
        if expert_pairs.takes(*layer, self._k):
            self.pairs = PairProducts(*whole)
        self.has_roles = has_roles(self._form, self._facts, self._n, self._k)

    def height(self, rows: int) -> int:
        """Return the rows of tiles; see Products."""
        return self._tile(rows).m

    def _tile(self, rows: int) -> Tile:
        return scaled_tile(self._form, self._facts, self._k, rows, roles=self.has_roles)

    def inputs(
        self, x: Tensor, tensors: Sequence[Any], routing: Routing, rows: int, *, silu: bool = False
    ) -> Input:
        """Return codes and scales, or x; see Products."""
        if self._quantizers:
            codes, scale = self._quantizers[silu](x, None)
            tile = self._tile(rows)
            if self._is_first and (tile.tma or tile.roles):
                return gathered(codes, scale, routing)
            return codes, scale
        if self._spec is None:
            return x, None
        element, scale = self._spec.element, tensors[2]
        return codes_of_pairs(x, scale, element, routing, gathers=self._is_first, ptx=self._ptx)

    def __call__(
        self,
        x: Input,
        tensors: Sequence[Any],
        bias: Tensor | None,
        out: Tensor,
        routing: Routing,
        rows: int,
    ) -> None:
        """Write the products to ``out``; see Products."""
        tile, scatters = self._tile(rows), not self._is_first
        layer = (self._form, tile, self._n, self._k, bias is not None)
        run: Callable[..., None]
        if tile.roles:
            run = expert_block_matmul.scaled_blocks(*layer, scatters)
        else:
            gathers = self._is_first and not self._is_static and not tile.tma
            run = expert_matmul.scaled(*layer, gathers, scatters)
        codes, x_scale = x
        run(codes, x_scale, tensors[0], tensors[1], bias, out, routing)
