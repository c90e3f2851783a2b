"""Products with packed codes under Triton's interpreter, beside f64."""

from __future__ import annotations

import pytest
import torch

from integer_weights import make_integers, with_half_scales
from quantdock.formats import ELEMENTS
from quantdock_triton.packed_layout import Packing, pack_words, packing_of

CASES = (
    # weight, M, N, K, tile (m, n, words, parts, folded)
    ("int4[1x128]", 3, 70, 256, (16, 64, 64, 1, False)),
    ("uint4[1x128]:zero", 5, 130, 640, (16, 64, 64, 2, False)),
    ("uint4[1x32]:zero", 17, 70, 160, (16, 64, 32, 1, False)),
    ("int4[1x64]", 2, 64, 320, (16, 64, 64, 2, False)),
    ("uint4[1x96]:zero", 4, 40, 288, (16, 64, 32, 2, False)),
    ("uint4[1x*]:zero", 33, 70, 288, (32, 64, 32, 3, False)),
    ("uint4[1x128]:zero", 40, 70, 512, (32, 64, 32, 1, True)),
    ("int3[1x32]", 1, 64, 128, (16, 64, 32, 1, True)),
    ("int8[1x*]", 5, 70, 160, (16, 64, 64, 1, False)),
    ("uint8[1x128]:zero", 5, 70, 384, (16, 64, 32, 2, False)),
    ("uint8[1x32]:zero", 5, 70, 96, (16, 64, 32, 1, False)),
    ("int6[1x64]", 5, 70, 192, (16, 64, 64, 1, True)),
)


@pytest.fixture
def module(interpreted):
    """Return the module of the launchers, made for the interpreter."""
    return interpreted("quantdock_triton.packed_matmul")


def packed(module, text, n, k, dtype=torch.float32):
    """Return (packing, packed weight, exact values [N, K]); scales and zeros are of ``dtype``."""
    segment = with_half_scales(make_integers(text, [n], k)).segments[0]
    packing = packing_of(segment.spec, k)
    shift = packing.middle if ELEMENTS[segment.spec.element].storage == "int8" else 0
    codes = (segment.codes.to(torch.int16) + shift).to(torch.uint8)
    weight = module.PackedWeight(
        words=pack_words(codes, packing),
        scale=segment.scale.T.to(dtype).contiguous(),
        zero=None if segment.zero is None else segment.zero.T.to(dtype).contiguous(),
        last=n,
    )
    return packing, weight, segment.dequantize().double()


@pytest.mark.parametrize("has_bias, dtype", [(False, torch.float16), (True, torch.float32)])
@pytest.mark.parametrize("text, m, n, k, tile", CASES)
def test_product(module, text, m, n, k, tile, has_bias, dtype):
    packing, weight, exact = packed(module, text, n, k, dtype)
    x = torch.randint(-8, 9, (m, k)).to(torch.float16)  # exact in every step
    bias = torch.randn(n) if has_bias else None
    names = ("m", "n", "words", "parts", "folded")
    made = module.matmul(packing, module.PackedTile(**dict(zip(names, tile, strict=True))), k)
    out = torch.full((m, n), torch.nan)
    counters = torch.zeros(module.NUM_COUNTERS, dtype=torch.int32)
    made(x, weight, bias, out, counters)
    expected = x.double() @ exact.T + (0 if bias is None else bias)
    limit = 2e-3 if tile[-1] else 1e-6
    assert (out - expected).norm() / expected.norm() < limit
    assert not counters.any()


def test_rows_of_the_weight(module):
    packing, weight, exact = packed(module, "uint4[1x64]:zero", 200, 256)
    x, out = torch.ones(2, 256, dtype=torch.float16), torch.full((2, 200), 7.0)
    run = module.matmul(packing, module.PackedTile(m=16, n=64, words=64, parts=2), 256)
    run(x, weight.rows(30, 171), None, out, torch.zeros(module.NUM_COUNTERS, dtype=torch.int32))
    expected = x.double() @ exact.T
    assert (out - expected)[:, 30:171].abs().max() < 1e-4
    assert (out[:, :30] == 7).all() and (out[:, 171:] == 7).all()


def test_nan_stays_in_its_row_and_group(module):
    packing, weight, _ = packed(module, "uint4[1x32]:zero", 70, 160)
    x = torch.ones(3, 160, dtype=torch.float16)
    x[1, 33] = torch.nan
    weight.scale[2, 5] = torch.nan
    out = torch.empty(3, 70)
    module.matmul(packing, module.PackedTile(m=16, n=64, words=32), 160)(x, weight, None, out)
    assert out[1].isnan().all() and out[:, 5].isnan().all()
    rest = torch.cat([out[:, :5], out[:, 6:]], dim=1)
    assert not rest[0].isnan().any() and not rest[2].isnan().any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("text, n, k", [(c[0], c[2], c[3]) for c in CASES])
def test_rows_become_floats(module, text, n, k, dtype):
    packing, weight, exact = packed(module, text, n, k, dtype)
    first, last = (0, n) if n < 70 else (10, n - 1)
    out = torch.full((last - first, k), torch.nan)
    module.unpack(packing, k)(weight.rows(first, last), out)
    assert torch.equal(out, exact[first:last].float())


def test_a_packing_says_how_wide_a_block_is():
    assert Packing(bits=4, plane=64, group=0).columns == 256
    assert Packing(bits=8, plane=32, group=32).blocks(65, 65) == (2, 2)
