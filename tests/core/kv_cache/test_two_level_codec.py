"""Keys and values in NVFP4: arithmetic by hand, one second scale for all or one a head."""

from __future__ import annotations

import pytest
import torch

from quantdock.errors import FormatError
from quantdock.kv_cache import FixedStore, KVScale, TokenStore, make_codec

GRID = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def expected(x: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return what NVFP4 says, value by value; ``second`` is [] or [H]."""
    level = second.view(1, -1, 1, 1)
    groups = x.float().unflatten(-1, (-1, 16))
    amax = groups.abs().amax(-1)
    first = (amax / (level * 6)).clamp(2**-9, 448).to(torch.float8_e4m3fn).float()
    scale = (first * level)[..., None]
    nearest = ((groups / scale).abs()[..., None] - GRID).abs()
    closest = nearest.min(-1, keepdim=True).values
    even = torch.arange(8) % 2
    code = torch.where(nearest == closest, even, 9).argmin(-1)
    return (groups.sign() * GRID[code] * scale).flatten(-2)


@pytest.fixture
def x() -> torch.Tensor:
    random = torch.Generator().manual_seed(3)
    x = torch.randn(2, 3, 5, 64, generator=random)
    return x * torch.tensor([0.1, 1.0, 8.0]).view(1, 3, 1, 1)


@pytest.mark.parametrize("second", [torch.tensor(0.01), torch.tensor([0.001, 0.01, 0.02])])
def test_values_are_those_of_nvfp4_under_the_stored_scale(x, second):
    codec = make_codec("fp4_e2m1", KVScale.of(second))
    codes, scale = codec.encode(x)
    assert (codes.shape, scale.shape) == ((2, 3, 5, 32), (2, 3, 5, 4))
    assert codes.dtype == scale.dtype == torch.uint8
    assert torch.equal(codec.decode(codes, scale, torch.float32), expected(x, second))


def test_stores_grow_and_stay_the_same(x):
    scale = KVScale.of(torch.tensor([0.001, 0.01, 0.02]))
    store = TokenStore(make_codec("fp4_e2m1", scale))
    for token in range(5):
        store.append(x[:, :, token : token + 1])
    whole = TokenStore(make_codec("fp4_e2m1", scale))
    whole.append(x[:, :, :0])
    whole.append(x)
    assert torch.equal(store.read(), whole.read())
    assert torch.equal(store.read(2), whole.read()[:, :, 3:])
    fixed = FixedStore(make_codec("fp4_e2m1", scale), x, 8)
    fixed.write(torch.arange(5), x)
    assert torch.equal(fixed.read()[:, :, :5], whole.read())
    assert not fixed.read()[:, :, 5:].any() and fixed.num_bytes == 2 * 3 * 8 * (32 + 4)


def test_nan_stays_in_its_group(x):
    x[0, 1, 2, 20] = torch.nan
    codec = make_codec("fp4_e2m1", KVScale.of(torch.tensor(0.01)))
    found = codec.decode(*codec.encode(x), torch.float32)
    assert found[0, 1, 2].isnan().nonzero().flatten().tolist() == list(range(16, 32))


def test_another_number_of_heads_is_refused(x):
    codec = make_codec("fp4_e2m1", KVScale.of(torch.tensor([0.1, 0.2])))
    with pytest.raises(FormatError, match="has 3 heads here, and 2 scales"):
        codec.encode(x)
