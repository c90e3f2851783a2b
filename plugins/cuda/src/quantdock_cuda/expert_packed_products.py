"""One matrix of experts whose weights alone have codes: floats of 4 and 6 bits, and integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from quantdock.schemes import Scheme
from quantdock_cuda.device import device_of
from quantdock_cuda.expert_packed_matmul import packed_roles
from quantdock_cuda.expert_products import Input, PairProducts
from quantdock_cuda.expert_stream import streamed
from quantdock_cuda.expert_tiles import (
    may_stream,
    packed_tile,
    small_float_tile,
    streaming_tile,
)
from quantdock_cuda.packed_matmul import RolesTile
from quantdock_cuda.packed_stream import StreamTile
from quantdock_triton import expert_matmul
from quantdock_triton.gather import rows_of_pairs
from quantdock_triton.packed_layout import Packing, float_packing_of, packing_of
from quantdock_triton.packed_matmul import PackedTile
from quantdock_triton.route import Routing
from quantdock_triton.small_float_matmul import FloatTile, SmallFloat, small_float_of

Run = Callable[..., None]


class _WeightsAlone:
    """Products whose activations are as given, of weights of one kind.

    Args:
        choose: the tile for the kind, the device and a number of rows.
        make: what multiplies by weights of the kind in a tile.
    """

    fuses_silu = False
    pairs: PairProducts | None = None

    def __init__(
        self,
        kind: SmallFloat | Packing,
        k: int,
        device: int,
        is_first: bool,
        *,
        choose: Callable[..., FloatTile | PackedTile | RolesTile | StreamTile],
        make: Callable[..., Run],
    ) -> None:
        self._kind, self._k, self._choose, self._make = kind, k, choose, make
        self._facts, self._is_first = device_of(device), is_first
        self.has_roles = isinstance(kind, Packing) and may_stream(kind, self._facts, k)

    def _tile(self, rows: int) -> FloatTile | PackedTile | RolesTile | StreamTile:
        more = {"streams": self.has_roles} if isinstance(self._kind, Packing) else {}
        return self._choose(self._kind, self._facts, rows, **more)

    def height(self, rows: int) -> int:
        """Return the rows of tiles; see Products."""
        tile = self._tile(rows)
        return tile.tokens if isinstance(tile, StreamTile) else tile.m

    def inputs(
        self, x: Tensor, tensors: Sequence[Any], routing: Routing, rows: int, *, silu: bool = False
    ) -> Input:
        """Return x, for warps with roles sorted as the pairs are; see Products."""
        is_copied = isinstance(self._tile(rows), RolesTile)
        if is_copied and self._is_first and not routing.is_direct:
            return rows_of_pairs(x, routing), None
        return x, None

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
        tile = self._tile(rows)
        if isinstance(tile, StreamTile) and isinstance(self._kind, Packing):
            total, direct = out.shape[1] * routing.num_tiles, routing.is_direct
            tile = streaming_tile(self._kind, self._facts, total, self._k, direct=direct)
        run = self._make(self._kind, tile, self._k, self._is_first)
        run(x[0], *tensors, bias, out, routing)


class SmallFloatProducts(_WeightsAlone):
    """Codes of 4 and 6 bits, with activations as given; arguments as for ScaledProducts."""

    NAMES = ("weight_words", "weight_scale_bytes", "weight_scale_2")

    def __init__(
        self, scheme: Scheme, scale_rows: int, sizes: tuple[int, int], device: int, is_first: bool
    ) -> None:
        kind = small_float_of(scheme.weight)
        choose, make = small_float_tile, _small_float
        super().__init__(kind, sizes[1], device, is_first, choose=choose, make=make)


class PackedProducts(_WeightsAlone):
    """Integers of 2 to 8 bits in words, with activations as given; arguments as above."""

    NAMES = ("weight_words", "group_scale", "group_zero")

    def __init__(
        self, scheme: Scheme, scale_rows: int, sizes: tuple[int, int], device: int, is_first: bool
    ) -> None:
        kind = packing_of(scheme.weight, sizes[1])
        choose = partial(packed_tile, is_first=is_first)
        super().__init__(kind, sizes[1], device, is_first, choose=choose, make=_packed)


class PackedFloatProducts(_WeightsAlone):
    """Codes of fp4_e2m1 in blocks, with activations as given; arguments as above."""

    NAMES = SmallFloatProducts.NAMES

    def __init__(
        self, scheme: Scheme, scale_rows: int, sizes: tuple[int, int], device: int, is_first: bool
    ) -> None:
        kind = float_packing_of(scheme.weight, sizes[1])
        choose = partial(packed_tile, is_first=is_first)
        super().__init__(kind, sizes[1], device, is_first, choose=choose, make=_packed_floats)


def _small_float(kind: SmallFloat, tile: FloatTile, k: int, is_first: bool) -> Run:
    return expert_matmul.small_float(kind, tile, k, is_first, not is_first)


def _packed(
    packing: Packing, tile: PackedTile | RolesTile | StreamTile, k: int, is_first: bool
) -> Run:
    if isinstance(tile, PackedTile):
        return expert_matmul.packed(packing, tile, k, is_first, not is_first)
    run = _blocks(packing, tile, k, is_first)
    return lambda x, words, scale, zero, *others: run(x, words, scale, zero, None, *others)


def _packed_floats(packing: Packing, tile: RolesTile | StreamTile, k: int, is_first: bool) -> Run:
    run = _blocks(packing, tile, k, is_first)
    return lambda x, words, stored, second, *others: run(x, words, second, None, stored, *others)


def _blocks(packing: Packing, tile: RolesTile | StreamTile, k: int, is_first: bool) -> Run:
    if isinstance(tile, StreamTile):
        return streamed(packing, tile, k, is_first)
    return packed_roles(packing, tile, k, is_first)
