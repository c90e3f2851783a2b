"""Products with a tiled piece: scales on either operand give the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdock.formats import parse_spec
from quantdock.kernels.tile_product import Tiles, multiply_tiled
from quantdock.numerics import expand_scale


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 12),
    n=st.integers(1, 40),
    k=st.integers(1, 50),
    height=st.sampled_from([1, 4, 16, 24]),
    width=st.sampled_from([1, 8, 16]),
)
def test_either_side_agrees_with_the_expanded_scale(
    m: int, n: int, k: int, height: int, width: int
) -> None:
    generator = torch.Generator().manual_seed(n * 64 + k)
    spec = parse_spec(f"fp8_e4m3[{height}x{width}]")
    x, piece = torch.randn(m, k, generator=generator), torch.randn(n, k, generator=generator)
    scale = torch.rand(spec.grid(n, k), generator=generator) + 0.5
    expected = x.double() @ (piece * expand_scale(scale, spec, n, k)).double().T
    out = torch.full((m, n + 3), torch.nan)[:, 1 : n + 1]
    multiply_tiled(out, x, piece, Tiles(scale, height, width))
    assert torch.allclose(out.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("m", "changes"), [(4, False), (5, True)])
def test_the_side_with_less_work_is_scaled(m: int, changes: bool) -> None:
    piece = torch.ones(32, 32)
    multiply_tiled(
        torch.empty(m, 32), torch.ones(m, 32), piece, Tiles(torch.full((2, 2), 3.0), 16, 16)
    )
    assert bool((piece != 1).any()) is changes


def test_tiles_of_a_piece_start_at_its_corner() -> None:
    tiles = Tiles(torch.arange(12.0).view(3, 4), 16, 8)
    part = tiles.at(slice(16, 40), slice(8, 32))
    assert part.values.tolist() == [[5.0, 6.0, 7.0], [9.0, 10.0, 11.0]]
    assert (part.height, part.width) == (16, 8)


def test_one_row_of_tiles_covers_every_piece() -> None:
    tiles = Tiles(torch.arange(4.0).view(1, 4), 1000, 8)
    part = tiles.at(slice(100, 140), slice(16, 32))
    assert part.values.tolist() == [[2.0, 3.0]]
    assert part.height == 40
