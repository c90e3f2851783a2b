from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from quantdock.errors import FormatError
from quantdock.formats import num_words
from quantdock.numerics import pack_bits, unpack_bits

FILES = sorted((Path(__file__).parents[2] / "golden" / "ct-pack-int32").glob("*.safetensors"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_words_are_those_of_compressed_tensors(file):
    """Its codes are signed and stored with an offset of half the range."""
    tensors = load_file(file)
    bits = int(file.stem[0])
    offset = 1 << bits - 1
    codes = (tensors["ints"].to(torch.int16) + offset).to(torch.uint8)
    assert torch.equal(pack_bits(codes, bits=bits), tensors["packed"])
    assert torch.equal(unpack_bits(tensors["packed"], bits=bits, count=codes.shape[1]), codes)


@given(
    bits=st.integers(1, 8), count=st.integers(0, 100), rows=st.integers(1, 3), dense=st.booleans()
)
def test_packing_is_undone(bits, count, rows, dense):
    codes = torch.randint(0, 1 << bits, (rows, count), dtype=torch.uint8)
    words = pack_bits(codes, bits=bits, dense=dense)
    assert words.shape == (rows, num_words(count, bits, dense=dense))
    assert torch.equal(unpack_bits(words, bits=bits, count=count, dense=dense), codes)


def test_loose_packing_leaves_the_top_of_a_word_free():
    codes = torch.full((10,), 7, dtype=torch.uint8)
    assert pack_bits(codes, bits=3, dense=False).tolist() == [2**30 - 1]
    assert num_words(11, 3, dense=False) == 2


def test_a_wrong_number_of_words_is_refused():
    with pytest.raises(FormatError, match=r"33 codes of 4 bits[\s\S]*5 words of int32"):
        unpack_bits(torch.zeros(2, 4, dtype=torch.int32), bits=4, count=33)
    with pytest.raises(FormatError, match="9 bits"):
        pack_bits(torch.zeros(4, dtype=torch.uint8), bits=9)
