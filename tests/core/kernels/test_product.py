"""Cutting a weight into pieces, and the product over them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdock.kernels import product
from quantdock.kernels.layout import to_grid
from quantdock.kernels.product import COLUMNS, INTEGER_COLUMNS, PIECE, cut, multiply
from quantdock.numerics import CanonicalWeight, Segment, quantize
from quantdock.schemes import parse_scheme


@given(
    n=st.integers(1, 40_000),
    k=st.integers(1, 40_000),
    tile_rows=st.sampled_from([1, 16, 128, 50_000]),
    tile_columns=st.sampled_from([1, 32, 128, 7, 50_000]),
    integers=st.booleans(),
)
def test_pieces_cover_the_weight_in_whole_tiles(
    n: int, k: int, tile_rows: int, tile_columns: int, integers: bool
) -> None:
    spans = cut(n, k, tile_rows, tile_columns, integers)
    assert spans[0][0].start == 0
    assert spans[-1][0].stop == k
    limit = INTEGER_COLUMNS if integers else COLUMNS
    for number, (columns, pieces) in enumerate(spans):
        width = columns.stop - columns.start
        assert 0 < width <= max(limit, tile_columns)
        assert number == 0 or columns.start == spans[number - 1][0].stop
        assert columns.start % tile_columns == 0
        assert [p.start for p in pieces] == [0, *[p.stop for p in pieces[:-1]]]
        assert pieces[-1].stop == n
        rows = max(p.stop - p.start for p in pieces)
        assert all(p.start % (1 if tile_rows >= n else tile_rows) == 0 for p in pieces)
        assert rows * width <= max(PIECE, width * (1 if tile_rows >= n else tile_rows))


@settings(max_examples=40, deadline=None)
@given(
    tile=st.sampled_from(["*x*", "1x*", "16x*", "16x32", "1x16", "*x32", "12x20"]),
    m=st.integers(1, 9),
    n=st.integers(1, 70),
    k=st.integers(1, 90),
    integers=st.booleans(),
)
def test_small_pieces_give_the_same_product(
    tile: str, m: int, n: int, k: int, integers: bool
) -> None:
    scheme = f"int8[{tile}]"
    weight = _make(scheme, n, k)
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(k))
    expected = x.double() @ weight.dequantize().double().T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product, "PIECE", 300)
        patch.setattr(product, "COLUMNS", 40)
        patch.setattr(product, "INTEGER_COLUMNS", 20)
        cut.cache_clear()
        result = multiply(x, to_grid(weight, weight.segments[0].spec), integers=integers)
    cut.cache_clear()
    assert torch.allclose(result.double(), expected, rtol=1e-5, atol=1e-4)


def _make(scheme: str, n: int, k: int) -> CanonicalWeight:
    spec = parse_scheme(scheme).weight
    made = quantize(torch.randn(n, k, generator=torch.Generator().manual_seed(n)), spec)
    return CanonicalWeight(segments=(Segment(spec=spec, codes=made.codes, scale=made.scale),))


def test_memory_stays_small_for_a_large_weight() -> None:
    spans = cut(28_672, 8192, 128, 128, False)
    largest = max(
        (columns.stop - columns.start) * (rows.stop - rows.start)
        for columns, pieces in spans
        for rows in pieces
    )
    assert largest <= PIECE  # 3 MiB of float16 and f32, where the weight in f32 has 940 MB


def test_integers_are_summed_exactly_part_by_part(
    make_weight: Callable[..., CanonicalWeight],
) -> None:
    weight = make_weight("int8[*x*]", [3], 5000)
    grid = to_grid(weight, weight.segments[0].spec)
    x = torch.randint(-128, 128, (2, 5000), generator=torch.Generator().manual_seed(0)).float()
    expected = x.double() @ grid.codes.double().T * grid.scale.double()
    result = multiply(x, grid, integers=True)
    assert torch.allclose(result.double(), expected, rtol=2.0**-23, atol=0)
