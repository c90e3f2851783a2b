from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantdock.formats import ELEMENTS
from quantdock.numerics import decode, encode

GOLDEN = {"fp4_e2m1": "e2m1fn", "fp6_e2m3": "e2m3fn", "fp6_e3m2": "e3m2fn"}


def every_code(element: str) -> torch.Tensor:
    return torch.arange(1 << ELEMENTS[element].bits, dtype=torch.uint8)


@pytest.mark.parametrize("element", GOLDEN)
def test_every_code_is_decoded_as_by_ml_dtypes(vector, element):
    v = vector(f"cast-decode/{GOLDEN[element]}")
    assert torch.equal(v["codes"], every_code(element))
    real = decode(v["codes"], element)
    assert torch.equal(real.view(torch.int32), v["f32"].view(torch.int32))
    for dtype in (torch.bfloat16, torch.float16):
        narrow = decode(v["codes"], element, dtype)
        assert narrow.dtype == dtype
        assert torch.equal(narrow.to(torch.float32).view(torch.int32), v["f32"].view(torch.int32))


@pytest.mark.parametrize("element", GOLDEN)
def test_encoding_undoes_decoding_with_the_sign_of_zero(element):
    codes = every_code(element)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert torch.equal(encode(decode(codes, element, dtype), element), codes)


@pytest.mark.parametrize("name", ["e2m3fn_tricky", "e3m2fn_tricky", "e3m2fn_random"])
def test_encoding_equals_ml_dtypes(vector, name):
    """Every value, midpoint, neighbour, overflow; its NaN has no code and no meaning."""
    v = vector(f"cast-encode/{name}")
    known = ~v["f32"].isnan()
    codes = encode(v["f32"], f"fp6_{name[:4]}")
    assert torch.equal(codes[known], v["codes"][known])


def test_ties_go_to_the_even_code():
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    even = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert decode(encode(ties, "fp4_e2m1"), "fp4_e2m1").tolist() == even
    up, down = (torch.nextafter(ties, torch.tensor(end)) for end in (9.0, 0.0))
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert decode(encode(up, "fp4_e2m1"), "fp4_e2m1").tolist() == values[1:]
    assert decode(encode(-down, "fp4_e2m1"), "fp4_e2m1").tolist() == [-v for v in values[:-1]]


@given(st.lists(st.floats(width=32), min_size=1, max_size=50), st.sampled_from(list(GOLDEN)))
def test_no_code_is_nearer(values, element):
    x = torch.tensor(values, dtype=torch.float32)
    x = x[~x.isnan()]
    real = decode(encode(x, element), element).to(torch.float64)
    every = decode(every_code(element), element).to(torch.float64)
    top = ELEMENTS[element].largest
    known = x.to(torch.float64).clamp(-top, top)
    nearest = (every[None, :] - known[:, None]).abs().amin(dim=1)
    assert torch.equal((real - known).abs(), nearest)
    assert torch.equal(torch.signbit(real), torch.signbit(x))


@pytest.mark.parametrize("element", GOLDEN)
def test_infinity_saturates_and_nan_has_no_code(element):
    top = ELEMENTS[element].largest
    x = torch.tensor([torch.inf, -torch.inf, 3e38, -3e38, torch.nan, -torch.nan])
    assert decode(encode(x, element), element).tolist() == [top, -top, top, -top, 0.0, 0.0]


@pytest.mark.parametrize("element", GOLDEN)
def test_a_byte_that_is_no_code_is_nan(element):
    beyond = torch.arange(1 << ELEMENTS[element].bits, 256).to(torch.uint8)
    assert decode(beyond, element).isnan().all()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (), (2, 3, 4)])
def test_any_shape(shape):
    codes = encode(torch.ones(shape), "fp4_e2m1")
    assert codes.shape == shape and codes.dtype == torch.uint8
    assert torch.equal(decode(codes, "fp4_e2m1"), torch.ones(shape))


def test_values_that_are_not_contiguous():
    x = torch.randn(5, 7).t()
    assert torch.equal(encode(x, "fp6_e2m3"), encode(x.contiguous(), "fp6_e2m3"))
    codes = encode(x, "fp6_e2m3").t()
    assert torch.equal(decode(codes, "fp6_e2m3"), decode(codes.contiguous(), "fp6_e2m3"))
