"""On an NVIDIA GPU: quantized activations equal the definition, bit for bit."""

from __future__ import annotations

import pytest
import torch

from quantdock.formats import parse_spec
from quantdock.numerics import quantize

pytestmark = pytest.mark.device
DYNAMIC = (
    "fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[1x128]:dynamic",
    "fp8_e4m3[1x96]:dynamic",
    "fp8_e4m3[1x32]:e8m0:ceil:dynamic",
    "fp8_e4m3[1x128]:e8m0:floor:dynamic",
    "fp8_e4m3[1x128]:e8m0:even:dynamic",
    "fp8_e4m3[*x*]:dynamic",
    "fp8_e5m2[1x*]:dynamic",
    "int8[1x*]:dynamic",
    "int8[1x128]:dynamic",
)
STATIC = ("fp8_e4m3[*x*]", "fp8_e5m2[*x*]", "int8[*x*]")
SHAPES = (
    (1, 7168), (3, 100), (17, 130), (129, 4096), (70, 18432), (5, 40000), (300, 1000), (261, 5008)
)  # fmt: skip
DTYPES = {  # every shape and every dtype, not each with each: each is a kernel to compile
    torch.bfloat16: SHAPES,
    torch.float16: SHAPES[1::3],
    torch.float32: SHAPES[::3],
}


def hard_values(m, k, dtype):
    """Return normal values at many magnitudes, with zeros of both signs, NaN and infinity."""
    x = torch.randn(m, k, device="cuda")
    if dtype is not torch.float16:
        x *= torch.exp2(torch.randint(-60, 60, (m, 1), device="cuda").float())
    x[:, 1::7], x[:, 2::11] = 0.0, -0.0
    if m > 4:
        x[0] = 0.0
        x[1, 3], x[2, 5], x[3, 4] = float("nan"), float("inf"), -float("inf")
        x[4] *= 2.0**-100 if dtype is torch.float32 else 1.0
    return x.to(dtype)


def assert_equal(text, x, static=None, slots=None):
    from quantdock_triton.quantize import quantizer

    spec, m = parse_spec(text), x.shape[0]
    num = 0 if static is None else static.numel()
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    early = slots is not None and torch.cuda.get_device_capability(0) >= (9, 0)
    run = quantizer(spec, x.shape[1], num, True, early=early, together=sms)
    codes, scale = run(x, static, slots)
    expected = quantize(x, spec, scale=None if static is None else static.amax())
    scale = scale if spec.granularity == "tensor" else scale[:m]
    assert torch.equal(scale.nan_to_num(7.0), expected.scale.nan_to_num(7.0))
    found, wanted = codes[:m].view(torch.uint8), expected.codes.view(torch.uint8)
    if "fp8" in text:
        is_nan = expected.codes.float().isnan()
        assert torch.equal(codes[:m].float().isnan(), is_nan)
        found, wanted = found.masked_fill(is_nan, 0), wanted.masked_fill(is_nan, 0)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
@pytest.mark.parametrize("text", DYNAMIC)
def test_computed_scales(cuda, text, dtype):
    for m, k in DTYPES[dtype]:
        assert_equal(text, hard_values(m, k, dtype))


@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
@pytest.mark.parametrize("text", STATIC)
def test_static_scales(cuda, text, dtype):
    for m, k in DTYPES[dtype]:
        x = hard_values(m, k, dtype)
        for scale in ([0.013], [0.02, 0.5, 0.013], [0.0], [2.0**-120]):
            assert_equal(text, x, torch.tensor(scale, device="cuda"))


@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
@pytest.mark.parametrize("text", ["fp8_e4m3[*x*]:dynamic", "int8[*x*]:dynamic"])
def test_one_scale_in_one_launch(cuda, text, dtype):
    """Programs tell each other what they found, on each stream through slots of its own."""
    from quantdock_cuda.device import counters

    for stream in (torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(3))):
        with torch.cuda.stream(stream):
            slots = counters.slots(0)
            assert slots is not None
            for m, k in ((2, 100), (17, 130), (129, 4096), (70, 18432), (256, 7168), (256, 40000)):
                assert_equal(text, hard_values(m, k, dtype), None, slots)
                assert_equal(text, torch.randn(m, k, device="cuda").to(dtype), None, slots)


def test_one_scale_on_several_streams_at_once(cuda):
    from quantdock_cuda.device import counters
    from quantdock_triton.quantize import quantizer

    spec = parse_spec("fp8_e4m3[*x*]:dynamic")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    run = quantizer(spec, 7168, 0, True, together=sms)
    xs = [torch.randn(m, 7168, device="cuda", dtype=torch.bfloat16) for m in (2, 64, 200)]
    wanted = [quantize(x, spec) for x in xs]
    streams, found = [torch.cuda.Stream() for _ in range(4)], []
    torch.cuda.synchronize()
    for _ in range(50):
        for stream in streams:
            with torch.cuda.stream(stream):
                found += [run(x, None, counters.slots(0)) for x in xs]
    torch.cuda.synchronize()
    for number, (codes, scale) in enumerate(found):
        expected = wanted[number % 3]
        m = expected.codes.shape[0]
        assert torch.equal(scale, expected.scale)
        assert torch.equal(codes[:m].view(torch.uint8), expected.codes.view(torch.uint8))


def test_division_is_exact_for_many_values(cuda):
    for _ in range(4):
        power = torch.randint(-100, 100, (4096, 1), device="cuda").float()
        x = torch.randn(4096, 8192, device="cuda") * power.exp2()
        assert_equal("fp8_e4m3[1x*]:dynamic", x)
        assert_equal("fp8_e4m3[1x128]:dynamic", x.to(torch.bfloat16))
        assert_equal("int8[1x*]:dynamic", x)


def test_strided_rows(cuda):
    x = torch.randn(33, 4, 640, device="cuda", dtype=torch.bfloat16)[:, 1, 32:448]
    for text in DYNAMIC:
        assert_equal(text, x)


def test_more_values_than_32_bits_count(cuda):
    x = torch.randn(1 << 18, 8448, device="cuda", dtype=torch.bfloat16)
    for text in ("fp8_e4m3[1x*]:dynamic", "fp8_e4m3[1x128]:dynamic"):
        from quantdock_triton.quantize import quantizer

        spec = parse_spec(text)
        codes, scale = quantizer(spec, x.shape[1], 0, True)(x, None)
        expected = quantize(x[-64:], spec)
        assert torch.equal(codes[-64:].view(torch.uint8), expected.codes.view(torch.uint8))
        assert torch.equal(scale[-64:], expected.scale)
