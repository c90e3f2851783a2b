"""Packing codes into words is a bijection, whatever the sizes and groups."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdock.formats import parse_spec
from quantdock_triton.packed_layout import Packing, pack_words, packing_of, unpack_words


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from([4, 8]),
    plane=st.sampled_from([32, 64]),
    n=st.integers(1, 150),
    k=st.integers(1, 600),
    seed=st.integers(0, 99),
)
def test_unpacking_gives_the_codes_back(bits, plane, n, k, seed):
    packing = Packing(bits=bits, plane=plane, group=0)
    random = torch.Generator().manual_seed(seed)
    codes = torch.randint(1 << bits, (n, k), generator=random, dtype=torch.uint8)
    words = pack_words(codes, packing)
    assert words.dtype == torch.int16 and words.is_contiguous()
    assert words.shape == (-(-n // 64), -(-k // (plane * 16 // bits)), 64, plane)
    assert torch.equal(unpack_words(words, n, k, packing), codes)


@settings(max_examples=30, deadline=None)
@given(bits=st.sampled_from([4, 8]), plane=st.sampled_from([32, 64]), seed=st.integers(0, 99))
def test_packing_gives_the_words_back(bits, plane, seed):
    packing = Packing(bits=bits, plane=plane, group=0)
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
