from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantdock.errors import FormatError
from quantdock.numerics import swizzle_scale, unswizzle_scale


@pytest.mark.parametrize("name", ["128x4", "32x8"])
def test_the_order_is_torchaos(vector, name):
    v = vector(f"nvfp4-swizzle/torchao_to_blocked_{name}")
    assert torch.equal(swizzle_scale(v["scale"]), v["swizzled"])
    assert torch.equal(unswizzle_scale(v["swizzled"], *v["scale"].shape), v["scale"])


@given(st.integers(1, 300), st.integers(1, 11))
def test_swizzling_is_undone_and_moves_every_scale_once(rows, columns):
    scale = torch.arange(1, rows * columns + 1, dtype=torch.int32).view(rows, columns)
    swizzled = swizzle_scale(scale)
    assert swizzled.shape == (-(-rows // 128) * 128 * -(-columns // 4) * 4,)
    assert torch.equal(swizzled[swizzled != 0].sort().values, scale.flatten())
    assert torch.equal(unswizzle_scale(swizzled, rows, columns), scale)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.uint8])
def test_bits_of_every_storage_are_moved(dtype):
    """Experts have a dimension in front. An exponent byte of 0 means 2^-127, and pads."""
    scale = torch.randint(1, 256, (3, 130, 5), dtype=torch.uint8)
    swizzled = swizzle_scale(scale.view(dtype))
    assert swizzled.dtype == dtype and swizzled.shape == (3, 256 * 8)
    assert torch.equal(unswizzle_scale(swizzled, 130, 5).view(torch.uint8), scale)
    one = swizzle_scale(scale[1])
    assert torch.equal(swizzled[1].view(torch.uint8), one)


def test_the_place_of_a_scale():
    """Row r, column c of a tile lies at (r mod 32) * 16 + (r div 32) * 4 + c."""
    swizzled = swizzle_scale(torch.arange(256 * 8, dtype=torch.int32).view(256, 8))
    for row, column in ((0, 0), (33, 2), (127, 3), (128, 4), (200, 7)):
        tile = row // 128 * 2 + column // 4
        place = tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4
        assert swizzled[place] == row * 8 + column


def test_another_number_of_scales_is_refused():
    with pytest.raises(FormatError, match=r"\[512\] is no swizzled grid of 129 x 4[\s\S]*1024"):
        unswizzle_scale(torch.zeros(512), 129, 4)
