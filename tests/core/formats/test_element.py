from __future__ import annotations

import pytest
import torch

from quantdock.formats import DTYPES, ELEMENTS


@pytest.mark.parametrize("name", ELEMENTS)
def test_a_code_fits_its_storage(name):
    element = ELEMENTS[name]
    assert element.name == name
    assert DTYPES[element.storage].bits == 8
    assert element.bits <= 8


@pytest.mark.parametrize("name", [n for n, e in ELEMENTS.items() if e.is_float])
def test_float_ranges_are_those_of_torch(name):
    element = ELEMENTS[name]
    info = torch.finfo(getattr(torch, element.storage))
    assert (element.lowest, element.largest) == (info.min, info.max)


@pytest.mark.parametrize("name", [n for n, e in ELEMENTS.items() if not e.is_float])
def test_integer_ranges_follow_from_the_bits(name):
    element = ELEMENTS[name]
    low = 0 if name.startswith("u") else -(2 ** (element.bits - 1))
    assert (element.lowest, element.largest) == (low, low + 2**element.bits - 1)
