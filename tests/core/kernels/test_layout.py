"""The plain layout: a bijection over tiles and shards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdock.errors import FormatError
from quantdock.formats import parse_spec
from quantdock.kernels.layout import from_grid, to_grid
from quantdock.numerics import CanonicalWeight, Segment, quantize

TILES = ("*x*", "1x*", "1x32", "16x16", "16x*", "*x16", "300x8")


def weight_of(tile: str, sizes: list[int], k: int) -> CanonicalWeight:
    spec = parse_spec(f"fp8_e4m3[{tile}]")
    generator = torch.Generator().manual_seed(sum(sizes) + k)
    segments = []
    for n in sizes:
        made = quantize(torch.randn(n, k, generator=generator), spec)
        segments.append(Segment(spec=spec, codes=made.codes, scale=made.scale))
    return CanonicalWeight(segments=tuple(segments))


@settings(max_examples=60, deadline=None)
@given(
    tile=st.sampled_from(TILES),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    k=st.integers(1, 70),
)
def test_going_back_gives_every_bit(tile: str, sizes: list[int], k: int) -> None:
    weight = weight_of(tile, sizes, k)
    grid = to_grid(weight, weight.segments[0].spec)
    assert grid.codes.shape == weight.shape
    back = from_grid(grid)
    assert len(back) == len(weight.segments)
    for old, new in zip(weight.segments, back, strict=True):
        assert torch.equal(old.codes.view(torch.uint8), new.codes.view(torch.uint8))
        assert torch.equal(old.scale, new.scale)
        assert old.spec == new.spec


@pytest.mark.parametrize(
    ("tile", "sizes", "scale_rows", "covered"),
    [
        ("*x*", [32], 1, 32),
        ("*x*", [32, 16], 48, 1),  # one scale per shard, repeated
        ("1x*", [32, 16], 48, 1),
        ("16x16", [32, 16], 3, 16),  # borders lie on tiles
        ("16x16", [32, 20], 4, 16),  # a cut tile at the end is still one
        ("16x16", [20, 32], 52, 1),  # a cut tile in the middle is not
        ("300x8", [310], 310, 1),  # taller than any piece
    ],
)
def test_scales_are_repeated_only_where_they_must(
    tile: str, sizes: list[int], scale_rows: int, covered: int
) -> None:
    weight = weight_of(tile, sizes, 48)
    grid = to_grid(weight, weight.segments[0].spec)
    assert grid.scale.shape[0] == scale_rows
    assert grid.rows_per_scale == covered


def test_one_dense_segment_is_not_copied() -> None:
    weight = weight_of("1x*", [8], 8)
    grid = to_grid(weight, weight.segments[0].spec)
    assert grid.codes.data_ptr() == weight.segments[0].codes.data_ptr()


def test_padded_storage_becomes_dense() -> None:
    padded = torch.randn(8, 40).to(torch.float8_e4m3fn)
    spec = parse_spec("fp8_e4m3[*x*]")
    segment = Segment(spec=spec, codes=padded[:, :32], scale=torch.ones(1, 1))
    grid = to_grid(CanonicalWeight(segments=(segment,)), spec)
    assert grid.codes.stride() == (32, 1)
    assert torch.equal(grid.codes.float(), padded[:, :32].float())


def test_another_spec_is_refused(make_weight: Callable[..., CanonicalWeight]) -> None:
    weight = make_weight("int8[1x*]", [4, 4], 8)
    with pytest.raises(FormatError, match=r"chosen for int8\[\*x\*\]"):
        to_grid(weight, parse_spec("int8[*x*]"))
