"""Weights of fp4_e2m1 in blocks become floats, under Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from quantdock.numerics import quantize_weight
from quantdock.schemes import parse_scheme
from quantdock_triton.packed_layout import Packing, float_packing_of, pack_words
from quantdock_triton.packed_scale_layout import pack_scale_words, unit_of


@pytest.fixture
def module(interpreted):
    """Return the module of the launcher, made for the interpreter."""
    return interpreted("quantdock_triton.packed_widen")


@pytest.mark.parametrize("text", ["fp4_e2m1[1x16]:e4m3:second[*x*]", "fp4_e2m1[1x32]:e8m0:even"])
@pytest.mark.parametrize("n, k", [(70, 160), (150, 512), (64, 352)])
def test_rows_become_floats(module, text, n, k):
    spec = parse_scheme(text).weight
    canonical = quantize_weight(torch.randn(n, k) * torch.arange(1, n + 1)[:, None], spec)
    segment, packing = canonical.segments[0], float_packing_of(spec, k)
    second = 1.0 if segment.second_scale is None else segment.second_scale
    weight = module.PackedWeight(
        words=pack_words(segment.codes, packing),
        scale=torch.ones(1, n) * second * unit_of(spec.scale),
        zero=None,
        scale_words=pack_scale_words(segment.scale, k, packing),
        last=n,
    )
    out = torch.full((n - 11, k), torch.nan)
    module.widen(packing, k)(weight.rows(10, n - 1), out)
    exact = canonical.dequantize().double()[10 : n - 1]
    assert (out - exact).norm() <= 1e-7 * exact.norm()


def test_every_code_and_every_scale(module):
    """From the smallest scale that keeps its bits to the largest one that is taken."""
    packing = Packing(bits=4, plane=32, group=16, scale="e8m0")
    exponents = torch.arange(-64, 66, dtype=torch.float64)[:, None]
    codes = torch.arange(16, dtype=torch.uint8).repeat(len(exponents), 1)
    weight = module.PackedWeight(
        words=pack_words(codes, packing),
        scale=torch.full((1, len(exponents)), unit_of("e8m0")),
        zero=None,
        scale_words=pack_scale_words(torch.exp2(exponents).float(), 16, packing),
        last=len(exponents),
    )
    out = torch.empty(len(exponents), 16)
    module.widen(packing, 16)(weight, out)
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values = torch.tensor([*magnitudes, *(-v for v in magnitudes)], dtype=torch.float64)
    assert torch.equal(out, (values * torch.exp2(exponents)).float())
