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


FLOATS = [e for e in ELEMENTS.values() if e.is_float]


@pytest.mark.parametrize("name", [e.name for e in FLOATS if e.bits == 8])
def test_float_ranges_are_those_of_torch(name):
    element = ELEMENTS[name]
    info = torch.finfo(getattr(torch, element.storage))
    assert (element.lowest, element.largest) == (info.min, info.max)


@pytest.mark.parametrize("element", [e for e in FLOATS if e.bits < 8], ids=lambda e: e.name)
def test_small_floats_have_the_range_of_their_bits(element):
    """The largest of all codes: all exponent and fraction bits are ones, and none is NaN."""
    exponent_bits = element.bits - 1 - element.fraction_bits
    top = element.lowest_exponent + 2**exponent_bits - 2
    assert element.largest == -element.lowest == (2 - 2.0**-element.fraction_bits) * 2.0**top


@pytest.mark.parametrize("name", [n for n, e in ELEMENTS.items() if not e.is_float])
def test_integer_ranges_follow_from_the_bits(name):
    element = ELEMENTS[name]
    low = 0 if name.startswith("u") else -(2 ** (element.bits - 1))
    assert (element.lowest, element.largest) == (low, low + 2**element.bits - 1)
