from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantdock.formats import QuantSpec, parse_spec
from quantdock.numerics import expand_scale, tile_amax, tile_range, tiles

sizes = st.integers(1, 20)
tile_sizes = st.one_of(st.none(), st.integers(1, 25))
specs = st.builds(QuantSpec, element=st.just("fp8_e4m3"), rows=tile_sizes, cols=tile_sizes)


def tiles_of(x: torch.Tensor, spec: QuantSpec):
    """Yield each tile and its place on the grid, by plain loops."""
    grid = spec.grid(*x.shape)
    rows, cols = spec.rows or x.shape[0], spec.cols or x.shape[1]
    for i in range(grid[0]):
        for j in range(grid[1]):
            yield (i, j), x[i * rows : (i + 1) * rows, j * cols : (j + 1) * cols]


@pytest.fixture(params=[1, 40, 1 << 18], ids=["row", "few rows", "whole"])
def chunk(request, monkeypatch):
    """Make ``tiles`` work on so many elements at a time."""
    monkeypatch.setattr(tiles, "_CHUNK", request.param)


@given(n=sizes, k=sizes, spec=specs, limit=st.sampled_from([1, 40, 1 << 18]))
def test_maxima_and_ranges_equal_plain_loops(n, k, spec, limit):
    x = torch.randn(n, k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "_CHUNK", limit)
        amax, (low, high) = tile_amax(x, spec), tile_range(x, spec)
    assert amax.shape == low.shape == high.shape == spec.grid(n, k)
    for place, tile in tiles_of(x, spec):
        assert amax[place] == tile.abs().max()
        assert low[place] == min(tile.min(), 0)
        assert high[place] == max(tile.max(), 0)


@given(n=sizes, k=sizes, spec=specs)
def test_expanded_scales_lie_on_their_tiles(n, k, spec):
    scale = torch.randn(spec.grid(n, k))
    expanded = expand_scale(scale, spec, n, k)
    grid = spec.grid(n, k)
    assert expanded.shape == (n if grid[0] > 1 else 1, k if grid[1] > 1 else 1)
    full = expanded.expand(n, k)
    for place, tile in tiles_of(full, spec):
        assert (tile == scale[place]).all()


@pytest.mark.usefixtures("chunk")
def test_nan_stays_in_its_tile():
    x = torch.ones(4, 6)
    x[2, 3] = torch.nan
    amax = tile_amax(x, parse_spec("fp8_e4m3[2x2]"))
    assert amax.isnan().tolist() == [[False] * 3, [False, True, False]]


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_maxima_are_f32(dtype):
    x = torch.randn(9, 10).to(dtype)
    amax = tile_amax(x, parse_spec("fp8_e4m3[4x4]"))
    assert amax.dtype == torch.float32
    assert amax.max() == x.to(torch.float32).abs().max()


@pytest.mark.parametrize("text", ["fp8_e4m3[*x*]", "fp8_e4m3[1x*]", "fp8_e4m3[128x128]"])
@pytest.mark.parametrize("shape", [(0, 256), (4, 0), (0, 0)])
def test_nothing_has_an_empty_grid(text, shape):
    spec = parse_spec(text)
    assert tile_amax(torch.ones(shape), spec).shape == spec.grid(*shape)
    assert tile_amax(torch.ones(shape), spec).numel() == 0


def test_a_view_with_gaps_has_the_maxima_of_its_values():
    x = torch.randn(64, 64)
    spec = parse_spec("fp8_e4m3[8x8]")
    assert torch.equal(tile_amax(x.t(), spec), tile_amax(x, spec).t())
    assert torch.equal(tile_amax(x[:, ::2], spec), tile_amax(x[:, ::2].contiguous(), spec))
