"""Cutting a weight into pieces, and the product over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdock.kernels import spans
from quantdock.kernels.layout import to_grid
from quantdock.kernels.product import columns_of_sum, multiply
from quantdock.kernels.spans import COLUMNS, PIECE, cut
from quantdock.numerics import CanonicalWeight, Segment, quantize
from quantdock.schemes import parse_scheme


@given(
    n=st.integers(1, 40_000),
    k=st.integers(1, 40_000),
    tile_rows=st.sampled_from([1, 16, 128, 50_000]),
    tile_columns=st.sampled_from([1, 32, 128, 7, 50_000]),
)
def test_spans_and_pieces_cover_the_weight_in_whole_tiles(
    n: int, k: int, tile_rows: int, tile_columns: int
) -> None:
    spans = cut(n, k, tile_rows, tile_columns, COLUMNS)
    height = 1 if tile_rows >= n else tile_rows
    assert covers([span.columns for span in spans], k, tile_columns)
    for span in spans:
        width = span.columns.stop - span.columns.start
        assert 0 < width <= max(COLUMNS, tile_columns)
        assert covers(span.pieces, n, height)
        rows = max(piece.stop - piece.start for piece in span.pieces)
        assert rows * width <= max(PIECE, width * height)
        assert span.parts == (slice(0, width),)


def covers(slices: Sequence[slice], size: int, step: int) -> bool:
    """Return whether ``slices`` follow one another over ``size`` and start at multiples."""
    starts, stops = [s.start for s in slices], [s.stop for s in slices]
    return starts == [0, *stops[:-1]] and stops[-1] == size and not any(s % step for s in starts)


@given(k=st.integers(1, 40_000))
def test_integer_sums_have_short_parts(k: int) -> None:
    for span in cut(64, k, 1, 1, 1024):
        assert covers(span.parts, span.columns.stop - span.columns.start, 1)
        assert all(part.stop - part.start <= 1024 for part in span.parts)


@pytest.mark.parametrize(
    ("scheme", "columns"),
    [
        ("int8[1x*] x int8[1x*]:dynamic", 1024),  # 2^24 / (128 * 128)
        ("uint8[1x*]:zero x int8[*x*]:zero", 258),  # 2^24 / (255 * 255)
        ("int4[1x*] x int8[1x*]:dynamic", COLUMNS),
        ("int8[1x*] x fp8_e4m3[1x*]:dynamic", COLUMNS),
        ("int8[1x*]", COLUMNS),
    ],
)
def test_a_sum_of_whole_numbers_stays_below_2_to_the_24(scheme: str, columns: int) -> None:
    assert columns_of_sum(parse_scheme(scheme)) == columns


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
        patch.setattr(spans, "PIECE", 300)
        patch.setattr(spans, "COLUMNS", 40)
        cut.cache_clear()
        result = multiply(x, to_grid(weight, weight.segments[0].spec), most=20 if integers else 40)
    cut.cache_clear()
    assert torch.allclose(result.double(), expected, rtol=1e-5, atol=1e-4)


def _make(scheme: str, n: int, k: int) -> CanonicalWeight:
    spec = parse_scheme(scheme).weight
    made = quantize(torch.randn(n, k, generator=torch.Generator().manual_seed(n)), spec)
    return CanonicalWeight(segments=(Segment(spec=spec, codes=made.codes, scale=made.scale),))


def test_memory_stays_small_for_a_large_weight() -> None:
    largest = max(
        (span.columns.stop - span.columns.start) * (rows.stop - rows.start)
        for span in cut(28_672, 8192, 128, 128, COLUMNS)
        for rows in span.pieces
    )
    assert largest <= PIECE  # 6 MiB of float16 and f32, where the weight in f32 has 940 MB


def test_integers_are_summed_exactly_part_by_part(
    make_weight: Callable[..., CanonicalWeight],
) -> None:
    weight = make_weight("int8[*x*]", [3], 5000)
    grid = to_grid(weight, weight.segments[0].spec)
    x = torch.randint(-128, 128, (2, 5000), generator=torch.Generator().manual_seed(0)).float()
    expected = x.double() @ grid.codes.double().T * grid.scale.double()
    result = multiply(x, grid, most=1024)
    assert torch.allclose(result.double(), expected, rtol=2.0**-23, atol=0)
