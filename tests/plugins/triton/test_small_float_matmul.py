"""Products with fp4 and fp6 codes: under Triton's interpreter beside f64, and their layout."""

from __future__ import annotations

import pytest
import torch

from quantdock.errors import FormatError
from quantdock.numerics import quantize_weight
from quantdock.schemes import parse_scheme
from quantdock_triton.small_float_layout import (
    FloatPacking,
    pack_runs,
    pack_scale,
    unpack_runs,
    unpack_scale,
)

NVFP4 = "fp4_e2m1[1x16]:e4m3:second[*x*]"
CASES = (
    # weight, M, N, K, tile (m, n, parts)
    (NVFP4, 3, 70, 256, (16, 64, 1)),
    (NVFP4, 17, 40, 208, (16, 64, 2)),
    ("fp4_e2m1[1x32]:e8m0:even", 5, 70, 160, (16, 64, 2)),
    ("fp4_e2m1[1x32]:e8m0:even", 33, 96, 352, (32, 64, 3)),
    ("fp4_e2m1[1x64]:e8m0:floor", 1, 64, 128, (16, 32, 1)),
    ("fp6_e2m3[1x32]:e8m0:even", 4, 70, 96, (16, 64, 1)),
    ("fp6_e3m2[1x32]:e8m0:even", 4, 70, 192, (16, 64, 2)),
)


@pytest.fixture
def module(interpreted):
    """Return the module of the launchers, made for the interpreter."""
    return interpreted("quantdock_triton.small_float_matmul")


def stored(module, text, n, k):
    """Return (kind, weight, exact values [N, K])."""
    spec = parse_scheme(text).weight
    values = torch.randn(n, k) * torch.exp2(torch.arange(n).float() % 7 - 3)[:, None]
    canonical = quantize_weight(values, spec)
    segment, kind = canonical.segments[0], module.small_float_of(spec)
    second = segment.second_scale
    weight = module.FloatWeight(
        words=pack_runs(segment.codes, kind.packing),
        scale=pack_scale(segment.scale, spec.scale, k, kind.packing),
        second=None if second is None else second.expand(n, -1).reshape(-1).contiguous(),
        last=n,
    )
    return kind, weight, canonical.dequantize().double()


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("text, m, n, k, tile", CASES)
def test_product(module, text, m, n, k, tile, has_bias):
    kind, weight, exact = stored(module, text, n, k)
    x = torch.randint(-8, 9, (m, k)).to(torch.float16)
    bias = torch.randn(n) if has_bias else None
    made = module.FloatTile(**dict(zip(("m", "n", "parts"), tile, strict=True)))
    out = torch.full((m, n), torch.nan)
    counters = torch.zeros(module.NUM_COUNTERS, dtype=torch.int32)
    module.matmul(kind, made, k)(x, weight, bias, out, counters)
    expected = x.double() @ exact.T + (0 if bias is None else bias)
    assert (out - expected).norm() / expected.norm() < 1e-6
    assert not counters.any()


@pytest.mark.parametrize("text, n, k", [(c[0], c[2], c[3]) for c in CASES])
def test_rows_become_floats(module, text, n, k):
    kind, weight, exact = stored(module, text, n, k)
    out = torch.full((n - 11, k), torch.nan)
    module.widen(kind, k)(weight.rows(10, n - 1), out)
    assert torch.equal(out, exact[10 : n - 1].float())


@pytest.mark.filterwarnings("ignore:overflow")  # 3 * 2^127 is infinite in f32
def test_every_code_and_every_scale(module):
    kind = module.SmallFloat(element="fp4_e2m1", group=16, scale="e8m0")
    codes = torch.arange(16, dtype=torch.uint8).repeat(255, 1)
    scale = torch.exp2(torch.arange(255, dtype=torch.float64)[:, None] - 127).float()
    weight = module.FloatWeight(
        words=pack_runs(codes, kind.packing),
        scale=pack_scale(scale, "e8m0", 16, kind.packing),
        second=None,
        last=255,
    )
    out = torch.empty(255, 16)
    module.widen(kind, 16)(weight, out)
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values = torch.tensor([*magnitudes, *(-v for v in magnitudes)], dtype=torch.float64)
    expected = values * torch.exp2(torch.arange(255, dtype=torch.float64)[:, None] - 127)
    assert torch.equal(out, expected.float())


@pytest.mark.parametrize("bits, fraction", [(4, 1), (6, 3), (6, 2)])
def test_shifts_and_masks_make_bfloat16_of_codes(bits, fraction):
    """What the kernel's machine code does, which the interpreter cannot run."""
    from quantdock_triton.small_float_kernel import _pieces_of

    packing = FloatPacking(bits=bits, group=32)
    places = packing.places
    codes = torch.randint(0, 1 << bits, (1, places, 32), dtype=torch.uint8)
    words = pack_runs(codes.view(1, -1), packing)[0].to(torch.int32) & 0xFFFF
    for place, taken in enumerate(_pieces_of(bits, fraction)):
        found = torch.zeros_like(words)
        for shift, mask in taken.items():
            assert not mask >> 16
            found |= (words << shift if shift >= 0 else words >> -shift) & mask
        code = codes[0, place].to(torch.int32)
        sign, magnitude = code >> bits - 1, code & (1 << bits - 1) - 1
        assert torch.equal(found, sign << 15 | magnitude << 7 - fraction)


def test_nan_stays_in_its_row(module):
    kind, weight, _ = stored(module, NVFP4, 70, 160)
    x = torch.ones(3, 160, dtype=torch.float16)
    x[1, 33] = torch.nan
    out = torch.empty(3, 70)
    module.matmul(kind, module.FloatTile(m=16, n=64), 160)(x, weight, None, out)
    assert out[1].isnan().all() and not out[[0, 2]].isnan().any()


@pytest.mark.parametrize(
    "bits, group, k, words", [(4, 16, 64, 16), (4, 32, 160, 64), (4, 48, 17, 16), (6, 32, 40, 32)]
)
def test_codes_are_packed_and_back(bits, group, k, words):
    packing = FloatPacking(bits=bits, group=group)
    codes = torch.randint(0, 1 << bits, (5, k), dtype=torch.uint8)
    packed = pack_runs(codes, packing)
    assert packed.dtype == torch.int16 and packed.shape == (5, words)
    assert torch.equal(unpack_runs(packed, k, packing), codes)


@pytest.mark.parametrize("group", [16, 32, 64, 48])
@pytest.mark.parametrize("kind, good", [("e4m3", [0.0, 448.0, 2.0**-9]), ("e8m0", [2.0**-127, 1])])
def test_scales_are_bytes_and_back(kind, good, group):
    packing, k = FloatPacking(bits=4, group=group), group * 7 - 5
    scale = torch.tensor(good)[torch.randint(0, len(good), (3, 7))]
    packed = pack_scale(scale, kind, k, packing)
    assert packed.dtype == torch.uint8
    assert torch.equal(unpack_scale(packed, kind, k, packing), scale)
    with pytest.raises(FormatError, match=f"1 of 2 scales are no {kind} numbers") as error:
        pack_scale(torch.tensor([[1.0, 0.3]]), kind, 2 * group, packing)
    assert "0.3" in str(error.value)
