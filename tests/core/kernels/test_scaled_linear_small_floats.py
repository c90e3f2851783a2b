"""MX and NV formats through the reference: floats of 4 and 6 bits, two levels of scales."""

from __future__ import annotations

import pytest
import torch

from quantdock.kernel import Problem
from quantdock.kernels import oracle
from quantdock.kernels.scaled_linear import ScaledLinear
from quantdock.schemes import parse_scheme

MXFP4, NVFP4 = "fp4_e2m1[1x32]:e8m0:even", "fp4_e2m1[1x16]:e4m3:second[*x*]"
SCHEMES = (
    MXFP4,
    "fp6_e2m3[1x32]:e8m0:even",
    "fp6_e3m2[1x32]:e8m0:even",
    f"{MXFP4} x {MXFP4}:dynamic",
    f"{MXFP4} x fp8_e4m3[1x32]:e8m0:ceil:dynamic",
    NVFP4,
    f"{NVFP4} x fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]-dynamic",
    f"{NVFP4} x fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]",
    "fp4_e2m1[1x16]:e4m3:second[1x*]",
    "fp4_e2m1[1x16]:e4m3:second[16x32]",
    "int4[1x*]:second[*x*] x fp8_e4m3[1x*]:dynamic",
)


@pytest.mark.parametrize("sizes", [(48,), (32, 16, 48)])
@pytest.mark.parametrize("text", SCHEMES)
def test_results_and_restored_weights_are_those_of_the_format(make_weight, text, sizes):
    scheme, k = parse_scheme(text), 96
    weight = make_weight(scheme, sizes, k)
    kernel = ScaledLinear(Problem(scheme=scheme, n=sum(sizes), k=k, shards=sizes))
    tensors = kernel.prepare(weight)
    x = torch.randn(5, k, generator=torch.Generator().manual_seed(9))
    result, expected = kernel.apply(tensors, x, None), oracle.linear(scheme, weight, x)
    assert (result - expected).norm() < 1e-6 * expected.norm()
    for before, after in zip(weight.segments, kernel.restore(tensors).segments, strict=True):
        assert torch.equal(before.codes, after.codes)
        assert torch.equal(before.scale, after.scale)
        assert (before.second_scale is None) is (after.second_scale is None)
        if before.second_scale is not None:
            assert torch.equal(before.second_scale, after.second_scale)


def test_four_bits_take_half_a_byte(make_weight):
    scheme = parse_scheme(NVFP4)
    kernel = ScaledLinear(Problem(scheme=scheme, n=48, k=96))
    tensors = kernel.prepare(make_weight(scheme, (48,), 96))
    assert tensors["weight"].shape == (48, 48) and tensors["weight"].dtype == torch.uint8
    assert tensors["weight_scale_2"].shape == (1, 1)


def test_every_code_decodes():
    """The 16 and 64 codes, each against the table of the formats."""
    from quantdock.kernels.decode import Decoder
    from quantdock.kernels.packed import pack_codes
    from quantdock.numerics import decode

    for element, count in (("fp4_e2m1", 16), ("fp6_e2m3", 64), ("fp6_e3m2", 64)):
        codes = torch.arange(count, dtype=torch.uint8)[None]
        decoder = Decoder(element)
        found = decoder(pack_codes(codes, element, [slice(0, count)]), count) * decoder.unit
        expected = decode(codes, element)
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32)), element
