"""Packing codes into words, and scales into bytes, is a bijection for any sizes and groups."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdock.errors import FormatError
from quantdock.formats import parse_spec
from quantdock_triton.packed_layout import (
    Packing,
    float_packing_of,
    pack_words,
    packing_of,
    unpack_words,
)
from quantdock_triton.packed_scale_layout import KEPT, pack_scale_words, unpack_scale_words

PACKINGS = [
    *(Packing(bits=bits, plane=plane, group=0) for bits in (4, 8) for plane in (32, 64)),
    *(Packing(bits=4, plane=p, group=g, scale="e4m3") for p in (32, 64) for g in (16, 32, 48)),
]


@settings(max_examples=60, deadline=None)
@given(
    packing=st.sampled_from(PACKINGS),
    n=st.integers(1, 150),
    k=st.integers(1, 600),
    seed=st.integers(0, 99),
)
def test_unpacking_gives_the_codes_back(packing, n, k, seed):
    bits, plane = packing.bits, packing.plane
    random = torch.Generator().manual_seed(seed)
    codes = torch.randint(1 << bits, (n, k), generator=random, dtype=torch.uint8)
    words = pack_words(codes, packing)
    assert words.dtype == torch.int16 and words.is_contiguous()
    assert words.shape == (-(-n // 64), -(-k // (plane * 16 // bits)), 64, plane)
    assert torch.equal(unpack_words(words, n, k, packing), codes)


@settings(max_examples=30, deadline=None)
@given(packing=st.sampled_from(PACKINGS), seed=st.integers(0, 99))
def test_packing_gives_the_words_back(packing, seed):
    plane = packing.plane
    random = torch.Generator().manual_seed(seed)
    words = torch.randint(-(1 << 15), 1 << 15, (2, 3, 64, plane), generator=random)
    words = words.to(torch.int16)
    codes = unpack_words(words, 128, 3 * packing.columns, packing)
    assert torch.equal(pack_words(codes, packing), words)


def test_where_each_code_lies():
    packing = Packing(bits=4, plane=64, group=128)
    codes = torch.randint(16, (130, 700), dtype=torch.uint8)
    words = pack_words(codes, packing).to(torch.int32) & 0xFFFF
    for row, column in ((0, 0), (1, 63), (5, 64), (129, 699), (77, 300), (128, 255)):
        block, within = divmod(column, 256)
        place, word = divmod(within, 64)
        found = int(words[row // 64, block, row % 64, word]) >> 4 * place & 15
        assert found == codes[row, column]


@pytest.mark.parametrize(
    "text, k, expected",
    [
        ("int4[1x128]", 4096, (4, 64, 128)),
        ("int4[1x32]", 4096, (4, 32, 32)),
        ("uint3[1x96]:zero", 960, (4, 32, 96)),
        ("uint4[1x*]:zero", 4096, (4, 64, 0)),
        ("int8[1x4096]", 4096, (8, 64, 0)),
        ("uint5[1x64]:zero", 4096, (8, 64, 64)),
    ],
)
def test_packing_follows_the_spec(text, k, expected):
    packing = packing_of(parse_spec(text), k)
    assert (packing.bits, packing.plane, packing.group) == expected


@settings(max_examples=60, deadline=None)
@given(
    plane=st.sampled_from([32, 64]),
    group=st.sampled_from([16, 32, 48, 64, 128]),
    kind=st.sampled_from(["e4m3", "e8m0"]),
    n=st.integers(1, 150),
    k=st.integers(1, 600),
    seed=st.integers(0, 99),
)
def test_unpacking_gives_the_scales_back(plane, group, kind, n, k, seed):
    packing = Packing(bits=4, plane=plane, group=group, scale=kind)
    random = torch.Generator().manual_seed(seed)
    scale = torch.exp2(torch.randint(-6, 8, (n, -(-k // group)), generator=random).float())
    words = pack_scale_words(scale, k, packing)
    assert words.dtype == torch.int32 and words.is_contiguous()
    assert words.shape == (*packing.blocks(n, k), packing.pieces, 64)
    assert torch.equal(unpack_scale_words(words, n, k, packing), scale)


def test_where_each_scale_lies():
    packing = Packing(bits=4, plane=64, group=16, scale="e8m0")
    exponents = torch.arange(44).repeat(70, 1) - torch.arange(70)[:, None] % 5
    words = pack_scale_words(torch.exp2(exponents.float()), 700, packing)
    for row, column in ((0, 0), (1, 63), (69, 699), (5, 300), (64, 255)):
        block, within = divmod(column, 256)
        place, word = divmod(within, 64)
        found = int(words[row // 64, block, word // 16, row % 64]) >> 8 * place & 255
        assert found == int(exponents[row, column // 16]) + 127 + KEPT["e8m0"]


def test_scales_of_another_kind_are_refused():
    packing = Packing(bits=4, plane=32, group=32, scale="e8m0")
    with pytest.raises(FormatError, match="1 of 1 scales are no e8m0 numbers"):
        pack_scale_words(torch.tensor([[3.0]]), 32, packing)


@pytest.mark.parametrize("kind", ["e4m3", "e8m0"])
def test_every_scale_of_a_kind(kind):
    """Of e8m0 up to 2^65, as layers take them."""
    codes = torch.arange(127 if kind == "e4m3" else 193, dtype=torch.uint8)
    stored_as = {"e4m3": torch.float8_e4m3fn, "e8m0": torch.float8_e8m0fnu}[kind]
    scale = codes.view(stored_as).float()[:, None]
    packing = Packing(bits=4, plane=32, group=32, scale=kind)
    words = pack_scale_words(scale, 32, packing)
    assert torch.equal(unpack_scale_words(words, len(scale), 32, packing), scale)
    stored = words[..., 0, :].reshape(-1)[: len(scale)] & 255
    kept = {"e4m3": (stored | 0x500) << 20, "e8m0": stored << 23}[kind].view(torch.float32)
    known = scale[:, 0] > 0
    assert torch.equal(kept[known], scale[known, 0] * 2.0 ** KEPT[kind])
    assert bool((kept[~known] <= 2.0 ** (KEPT[kind] - 23)).all())


def test_scales_with_a_sign_are_refused():
    packing = Packing(bits=4, plane=32, group=16, scale="e4m3")
    with pytest.raises(FormatError, match="A scale has a sign"):
        pack_scale_words(torch.tensor([[-0.0]]), 16, packing)


@pytest.mark.parametrize("k, plane", [(4096, 64), (2880, 64), (352, 32), (96, 32), (1, 32)])
def test_wide_planes_unless_they_fill_up_a_tenth_more(k, plane):
    packing = float_packing_of(parse_spec("fp4_e2m1[1x16]:e4m3"), k)
    assert (packing.plane, packing.run, packing.pieces) == (plane, 16, plane // 16)
