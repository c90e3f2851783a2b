"""Tiles: their spelling, and what follows from sizes."""

from __future__ import annotations

import pytest

from quantdock.errors import FormatError
from quantdock_triton.tile import Form, Tile, parse_tile


@pytest.mark.parametrize(
    "text",
    [
        "16x64x128",
        "128x256x64 warps=8 stages=3 tma",
        "8x64x128 parts=4 resident=3 swap roles",
        "64x32x128 stages=12 slices=2 roles",
    ],
)
def test_spelling_is_kept(text):
    assert str(parse_tile(text)) == text


@pytest.mark.parametrize("text", ["16x64", "16x64x128 warm=3", "16x64x128 swop"])
def test_other_words_are_refused(text):
    with pytest.raises(FormatError, match="is no tile"):
        parse_tile(text)


@pytest.mark.parametrize(
    "x_cols, weight_cols, step",
    [(0, 0, 256), (128, 128, 128), (128, 0, 128), (0, 128, 128), (96, 96, 32), (32, 128, 32),
     (512, 512, 256), (160, 160, 32)],
)  # fmt: skip
def test_no_scale_changes_within_a_step(x_cols, weight_cols, step):
    assert Form(x_cols=x_cols, weight_cols=weight_cols).block_k(256) == step


def test_stages_fit_the_memory():
    tile = Tile(m=128, n=128, k=128, stages=6)
    assert tile.shared_bytes(Form()) == 6 * 32768
    assert tile.fitted(Form(), 99 << 10).stages == 3
    assert tile.fitted(Form(), 0).stages == 1
