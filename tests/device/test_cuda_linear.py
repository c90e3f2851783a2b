"""On an NVIDIA GPU: the plugin's linear layer beside the oracle, at the edges of its shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quantdock.functional import InputFormat, quantize_input
from quantdock.kernel import Problem
from quantdock.kernels import oracle
from quantdock.numerics import join, quantize_weight
from quantdock.schemes import parse_scheme

pytestmark = pytest.mark.device
FP8 = (
    "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic",
    "fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[1x*] x fp8_e4m3[*x*]",
    "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
    "fp8_e4m3[128x128]:e8m0:ceil x fp8_e4m3[1x128]:e8m0:ceil:dynamic",
    "fp8_e4m3[64x96] x fp8_e4m3[1x96]:dynamic",
    "fp8_e4m3[128x128] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[1x*] x fp8_e4m3[1x128]:dynamic",
    "fp8_e4m3[1x32]:e8m0:ceil x fp8_e4m3[1x32]:e8m0:ceil:dynamic",
)
INT8 = (
    "int8[1x*] x int8[1x*]:dynamic",
    "int8[*x*] x int8[*x*]",
    "int8[128x128] x int8[1x128]:dynamic",
)
WEIGHT_ONLY = (
    "fp8_e4m3[1x*]",
    "fp8_e4m3[*x*]",
    "fp8_e4m3[128x128]",
    "fp8_e5m2[1x*]",
    "fp8_e4m3[1x32]:e8m0:ceil",
    "int8[1x*]",
)
ROWS = (1, 3, 17, 129, 600)
TOLERANCE = 2.0**-7


def made(text, n, k, dtype=torch.bfloat16, shards=None, bias=False):
    """Return (layer, its tensors on the GPU, canonical weight on the CPU, bias)."""
    from quantdock_cuda.scaled_linear import CudaScaledLinear

    scheme, shards = parse_scheme(text), shards or (n,)
    dense = [torch.randn(rows, k) * (i + 1) for i, rows in enumerate(shards)]
    weight = join([quantize_weight(part, scheme.weight) for part in dense])
    if scheme.is_static:
        scales = torch.tensor([0.02 + 0.01 * i for i in range(len(shards))])
        weight = replace(weight, input_scale=scales)
    name = str(dtype).removeprefix("torch.")
    problem = Problem(scheme=scheme, n=sum(shards), k=k, shards=shards, dtype=name, has_bias=bias)
    layer = CudaScaledLinear(problem)
    tensors = {key: t.cuda() for key, t in layer.prepare(weight).items()}
    added = torch.randn(sum(shards)).to(dtype).cuda() if bias else None
    return layer, tensors, weight, added


def check(text, m, n, k, dtype=torch.bfloat16, shards=None, bias=False):
    layer, tensors, weight, added = made(text, n, k, dtype, shards, bias)
    x = torch.randn(m, k).to(dtype)
    expected = oracle.linear(parse_scheme(text), weight, x, None if added is None else added.cpu())
    found = layer.apply(tensors, x.cuda(), added)
    assert found.dtype == dtype and found.shape == expected.shape
    error = (found.cpu().float() - expected.float()).norm() / expected.float().norm()
    assert error < TOLERANCE, f"{text} M={m} N={n} K={k} {dtype}: {error:.1e}"


@pytest.mark.parametrize("text", (*FP8, *INT8, *WEIGHT_ONLY))
def test_equals_the_oracle(cuda, text):
    for m in ROWS:
        check(text, m, 320, 512)
    for m in ROWS[1::2]:
        check(text, m, 300, 330, bias=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("text", (FP8[0], FP8[1], FP8[5], INT8[0], *WEIGHT_ONLY[:3]))
def test_other_dtypes(cuda, text, dtype):
    for m in (1, 17, 200):
        check(text, m, 256, 384, dtype, bias=True)


@pytest.mark.parametrize("text", (FP8[0], FP8[1], FP8[5], FP8[4], WEIGHT_ONLY[2]))
def test_fused_shards(cuda, text):
    for m in (1, 40):
        check(text, m, 0, 512, shards=(256, 64, 64))
        check(text, m, 0, 512, shards=(100, 60))


@pytest.mark.parametrize("text", (FP8[0], FP8[5], INT8[0], WEIGHT_ONLY[0]))
def test_gradients_are_those_of_the_dequantized_layer(cuda, text):
    layer, tensors, weight, bias = made(text, 320, 512, bias=True)
    x, given = torch.randn(7, 512).bfloat16().cuda(), torch.randn(7, 320).bfloat16()
    layer.apply(tensors, x.requires_grad_(), bias.requires_grad_()).backward(given.cuda())
    expected = given.double() @ weight.dense().double()
    assert (x.grad.cpu().double() - expected).norm() <= 2.0**-8 * expected.norm()
    assert torch.allclose(bias.grad.cpu().float(), given.float().sum(0), rtol=0.02, atol=0.05)


LISTED = (("row", 2112, 7168), ("row", 7168, 2048), ("block", 2112, 7168), ("block", 4096, 4096))
NUM_TURNS = 4


@pytest.mark.parametrize("turn", range(NUM_TURNS))
@pytest.mark.parametrize("name, n, k", LISTED)
def test_every_way_of_the_table_is_right(cuda, name, n, k, turn):
    """At each number of rows that the table lists: its first three ways, on the same operands.

    In turns, as each way is a kernel to compile.
    """
    from benchmarks.cuda.shapes import FORMS
    from benchmarks.cuda.timing import Pool
    from quantdock_cuda.device import device_of
    from quantdock_cuda.libraries import LIBRARY
    from quantdock_cuda.tables import shipped
    from quantdock_cuda.tiling import ways
    from quantdock_cuda.tuning.operands import Operands

    pool, shape = Pool(1 << 27), (n, k)
    shapes = shipped(device_of(0).arch).get(name, {})
    if shape not in shapes:
        pytest.skip(f"no table for {name} {shape} on {cuda}")
    for m in sorted(shapes[shape])[turn::NUM_TURNS]:
        case = Operands(FORMS[name], min(m, 3000), n, k, pool)
        for way in ways(FORMS[name], device_of(0), n, k, m):
            if way == LIBRARY and m < 16:
                continue
            assert case.error(way) < 5e-3, f"{way} M={m}"


@pytest.mark.parametrize(
    "m, n, k, text",
    [
        (1000, 2112, 1024, "128x128x256 stages=3 tma roles"),
        (1000, 2112, 1024, "128x64x128 stages=6 parts=2 roles"),
        (512, 14336, 640, "128x128x128 stages=5 roles"),
        (64, 14336, 512, "64x64x128 resident=2 roles"),
        (16, 24576, 512, "16x64x128 stages=6 resident=2 swap roles"),
        (64, 9216, 1024, "64x32x256 stages=6 slices=2 roles"),
    ],
)
def test_programs_that_take_several_tiles_are_right(cuda, m, n, k, text):
    from benchmarks.cuda.timing import Pool
    from quantdock_cuda.tiling import BLOCK
    from quantdock_cuda.tuning.operands import Operands
    from quantdock_triton.tile import parse_tile

    if "wgmma" not in cuda.features:
        pytest.skip("for Hopper's tensor cores")
    case = Operands(BLOCK, m, n, k, Pool(1 << 24))
    weight = case.weights[0]
    found = case.run(parse_tile(text), weight).clone()
    small = case.run(parse_tile("64x64x128 stages=3"), weight)  # by plain Triton, tile by tile
    assert case.error(parse_tile(text)) < 5e-3
    assert (found - small).float().norm() < 2.0**-7 * small.float().norm()


def test_results_do_not_change_between_runs(cuda):
    layer, tensors, _, _ = made(FP8[5], 512, 4096)
    x = torch.randn(16, 4096, device="cuda", dtype=torch.bfloat16)
    first = layer.apply(tensors, x, None)
    assert all(torch.equal(layer.apply(tensors, x, None), first) for _ in range(20))


@pytest.mark.parametrize("text", (FP8[0], FP8[1], FP8[5], INT8[0], WEIGHT_ONLY[0]))
def test_empty_strided_and_batched_inputs(cuda, text):
    layer, tensors, _, _ = made(text, 320, 512)
    assert layer.apply(tensors, torch.empty(0, 512, device="cuda"), None).shape == (0, 320)
    assert layer.apply(tensors, torch.empty(2, 0, 512, device="cuda"), None).shape == (2, 0, 320)
    wide = torch.randn(6, 5, 1024, device="cuda", dtype=torch.bfloat16)
    for x in (wide[:, 1, :512], wide[:, :, 3:515], wide[:, 2, ::2], wide[..., :512]):
        expected = layer.apply(tensors, x.contiguous(), None)
        assert torch.equal(layer.apply(tensors, x, None), expected)


@pytest.mark.parametrize("text", (FP8[0], FP8[5]))
def test_nan_stays_in_its_row(cuda, text):
    layer, tensors, _, _ = made(text, 320, 512)
    for m in (3, 200):
        x = torch.randn(m, 512, device="cuda", dtype=torch.bfloat16)
        clean = layer.apply(tensors, x, None)
        x[1, 77] = float("nan")
        found = layer.apply(tensors, x, None)
        assert found[1].isnan().all()
        keep = torch.arange(m, device="cuda") != 1
        assert torch.equal(found[keep], clean[keep])


def test_partial_sums_are_not_rounded(cuda):
    layer, tensors, weight, _ = made(FP8[0], 320, 512)
    x = torch.randn(9, 512).to(torch.bfloat16)
    expected = oracle.linear(parse_scheme(FP8[0]), weight, x.float())
    found = layer.apply_partial(tensors, x.cuda())
    assert found.dtype == torch.float32
    assert (found.cpu() - expected).norm() / expected.norm() < 2e-3


def test_restore_and_cpu_offload(cuda):
    layer, tensors, weight, _ = made(FP8[5], 320, 512)
    back = layer.restore({key: t.cpu() for key, t in tensors.items()})
    assert torch.equal(back.dequantize(), weight.dequantize())
    x = torch.randn(7, 512).to(torch.bfloat16)
    on_cpu = layer.apply({key: t.cpu() for key, t in tensors.items()}, x, None)
    on_gpu = layer.apply(tensors, x.cuda(), None)
    assert (on_gpu.cpu().float() - on_cpu.float()).norm() / on_cpu.float().norm() < TOLERANCE


def test_more_results_than_32_bits_count(cuda):
    """In f16, which the libraries do not take."""
    layer, tensors, _, _ = made(FP8[0], 8192, 128, torch.float16)
    x = torch.randn(1 << 18, 128, device="cuda", dtype=torch.float16)
    found = layer.apply(tensors, x, None)
    assert found.numel() == 1 << 31
    few = layer.apply(tensors, x[-300:], None).float()
    assert (found[-300:].float() - few).norm() / few.norm() < 1e-2


@pytest.mark.parametrize(
    "text",
    [
        "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
        "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
        "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic",
        "int8[1x*] x int8[1x*]:dynamic",
        "fp8_e4m3[1x*]",
    ],
)
def test_rows_are_what_they_are_alone(cuda, text):
    from quantdock_cuda.scaled_linear import CudaScaledLinear

    n, k, scheme = 384, 2048, parse_scheme(text)
    layer = CudaScaledLinear(
        Problem(scheme=scheme, n=n, k=k, shards=(n,), dtype="bfloat16", batch_invariant=True)
    )
    tensors = layer.prepare(quantize_weight(torch.randn(n, k, device="cuda"), scheme.weight))
    x = torch.randn(700, k, device="cuda", dtype=torch.bfloat16)
    together = layer.apply(tensors, x, None)
    for m in (1, 7, 64, 300):
        assert torch.equal(layer.apply(tensors, x[:m], None), together[:m])


@pytest.mark.parametrize("text", (FP8[0], FP8[5], FP8[7], INT8[0]))
@pytest.mark.parametrize("m", (1, 33, 257))
def test_what_lies_behind_codes_is_in_no_result(cuda, text, m):
    from quantdock_cuda.quantized_input import CudaInput

    layer, tensors, _, _ = made(text, 2112, 1152)
    spec, kernel = parse_scheme(text).activation, CudaInput(layer.problem)
    to = InputFormat(spec=spec, k=1152, scale=None, kernel=kernel)
    given = quantize_input(torch.randn(m, 1152, device="cuda", dtype=torch.bfloat16), to)
    results = []
    for behind in (0, 0x7F):  # the latter is NaN in e4m3
        memory = torch.full((512, 1152), behind, dtype=torch.uint8, device="cuda")
        codes = memory[: given.codes.shape[0]]
        codes.copy_(given.codes.view(torch.uint8))
        x = replace(given, codes=codes.view(given.codes.dtype))
        results.append(layer.apply_quantized(tensors, x, None))
    assert results[0].isfinite().all()
    assert torch.equal(*results)
