"""Keys and values in fp4: OCP's arithmetic with a scale for 16 numbers, 9 bytes for 16."""

from __future__ import annotations

import pytest
import torch

from quantdock.errors import FormatError
from quantdock.kv_cache import FixedStore, KVCodec, TokenStore, make_codec

GRID = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def expected(x: torch.Tensor) -> torch.Tensor:
    """Return what OCP MX says, value by value: the scale is 2^(floor(log2 of the largest) - 2).

    The largest is rounded to two digits of mantissa first, ties up, as MXFP4's "even" scales are.
    """
    groups = x.double().reshape(-1, 16)
    out = torch.empty_like(groups)
    for row, values in enumerate(groups):
        amax = values.abs().max()
        if amax == 0:
            out[row] = 0
            continue
        exponent = torch.floor(torch.log2(amax))
        if amax / 2**exponent >= 1.75:  # rounds to the next power of two
            exponent += 1
        scale = 2 ** (exponent - 2)
        magnitudes = (values.abs() / scale).clamp(max=6.0)
        nearest = (magnitudes[:, None] - GRID.double()).abs()
        closest = nearest.min(dim=1, keepdim=True).values
        even = torch.arange(8) % 2
        choice = torch.where(nearest == closest, even, 9).argmin(dim=1)
        out[row] = values.sign() * GRID.double()[choice] * scale
    return out.view(x.shape).float()


@pytest.fixture
def x() -> torch.Tensor:
    random = torch.Generator().manual_seed(3)
    x = torch.randn(2, 3, 5, 64, generator=random)
    return x * torch.tensor([1e-6, 1.0, 3e4]).view(1, 3, 1, 1)


def test_values_are_those_of_ocp_with_groups_of_16(x):
    codec = make_codec("fp4_e2m1", None)
    codes, scale = codec.encode(x)
    assert (codes.shape, scale.shape) == ((2, 3, 5, 32), (2, 3, 5, 4))
    assert codes.dtype == scale.dtype == torch.uint8
    assert torch.equal(codec.decode(codes, scale, torch.float32), expected(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_stored_comes_back_bit_for_bit(x, dtype):
    codec = make_codec("fp4_e2m1", None)
    once = codec.decode(*codec.encode(x), dtype)
    assert torch.equal(codec.decode(*codec.encode(once), dtype), once)


def test_stores_grow_and_stay_the_same(x):
    store = TokenStore(make_codec("fp4_e2m1", None))
    for token in range(5):
        store.append(x[:, :, token : token + 1])
    whole = TokenStore(make_codec("fp4_e2m1", None))
    whole.append(x[:, :, :0])
    whole.append(x)
    assert torch.equal(store.read(), whole.read())
    assert torch.equal(store.read(2), whole.read()[:, :, 3:])
    fixed = FixedStore(make_codec("fp4_e2m1", None), x, 8)
    fixed.write(torch.arange(5), x)
    assert torch.equal(fixed.read()[:, :, :5], whole.read())
    assert fixed.num_bytes == 2 * 3 * 8 * (32 + 4)


def test_nan_stays_in_its_group(x):
    x[0, 1, 2, 20] = torch.nan
    codec = make_codec("fp4_e2m1", None)
    found = codec.decode(*codec.encode(x), torch.float32)
    assert found[0, 1, 2].isnan().nonzero().flatten().tolist() == list(range(16, 32))
    assert int(found.isnan().sum()) == 16


def test_other_elements_keep_a_byte_a_code():
    assert type(make_codec("int8", None)) is KVCodec


def test_a_width_that_is_no_multiple_of_16_is_refused():
    with pytest.raises(FormatError, match=r"24 numbers a head[\s\S]*16 numbers share a scale"):
        make_codec("fp4_e2m1", None).encode(torch.zeros(1, 1, 1, 24))
