"""On an NVIDIA GPU: layers of fp4 and fp6 weights beside the oracle, alone and in a batch."""

from __future__ import annotations

import pytest
import torch

import quantdock
from integer_weights import assert_same
from quantdock.kernel import Problem
from quantdock.kernels import oracle
from quantdock.numerics import join, quantize_weight
from quantdock.schemes import parse_scheme

pytestmark = [
    pytest.mark.device,
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*TensorFloat32 tensor cores.*:UserWarning"),
]
SCHEMES = (
    "fp4_e2m1[1x16]:e4m3:second[*x*]",
    "fp4_e2m1[1x32]:e8m0:even",
    "fp4_e2m1[1x64]:e8m0:floor",
    "fp6_e2m3[1x32]:e8m0:even",
    "fp6_e3m2[1x32]:e8m0:even",
)
SHAPES = (((200,), 1024), ((64, 33, 8), 352), ((70,), 96))
RAGGED = ((208,), 2880)  # in wide planes, which its columns do not fill
DTYPES = {torch.bfloat16: (*SHAPES, RAGGED), torch.float16: SHAPES[1:2], torch.float32: SHAPES[2:]}
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10, torch.float32: 1e-5}


BLOCKS = tuple(text for text in SCHEMES if text.startswith("fp4"))
KINDS = [*((text, False) for text in SCHEMES), *((text, True) for text in BLOCKS)]


def made(text, sizes, k, dtype, in_blocks=False, **more):
    """Return (layer, its tensors on the GPU, canonical weight on the CPU)."""
    from quantdock_cuda.small_float_linear import CudaPackedFloatLinear, CudaSmallFloatLinear

    scheme = parse_scheme(text)
    weight = join(
        [quantize_weight(torch.randn(n, k) * (i + 1), scheme.weight) for i, n in enumerate(sizes)]
    )
    name = str(dtype).removeprefix("torch.")
    problem = Problem(scheme=scheme, n=sum(sizes), k=k, shards=tuple(sizes), dtype=name, **more)
    layer = (CudaPackedFloatLinear if in_blocks else CudaSmallFloatLinear)(problem)
    return layer, {n: t.cuda() for n, t in layer.prepare(weight).items()}, weight


def skip_without_wgmma(in_blocks):
    if in_blocks and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs asynchronous tensor cores of sm_90")


@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
@pytest.mark.parametrize("text, in_blocks", KINDS)
def test_equals_the_oracle(cuda, text, in_blocks, dtype):
    skip_without_wgmma(in_blocks)
    for sizes, k in DTYPES[dtype]:
        layer, tensors, weight = made(text, sizes, k, dtype, in_blocks)
        bias = torch.randn(sum(sizes)).to(dtype)
        for m in (0, 1, 3, 17, 64, 100, 129, 300):
            x = torch.randn(m, k).to(dtype)
            expected = oracle.linear(parse_scheme(text), weight, x, bias).float()
            found = layer.apply(tensors, x.cuda(), bias.cuda())
            assert found.dtype == dtype and found.shape == expected.shape
            # From 129 rows on, weights are rounded to x's dtype with their second scale.
            limit = ROUNDING[dtype] * (2 if m > 128 else 1)
            assert (found.cpu().float() - expected).norm() <= limit * expected.norm()


@pytest.mark.parametrize("in_blocks", [False, True])
def test_going_back_gives_every_bit(cuda, in_blocks):
    layer, tensors, weight = made(SCHEMES[0], (64, 33), 352, torch.bfloat16, in_blocks)
    restored = layer.restore({name: tensor.cpu() for name, tensor in tensors.items()})
    assert_same(weight, restored)


@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
@pytest.mark.parametrize("in_blocks", [False, True])
def test_rows_are_what_they_are_alone(cuda, in_blocks, dtype):
    skip_without_wgmma(in_blocks)
    layer, tensors, _ = made(SCHEMES[0], (320,), 2048, dtype, in_blocks, batch_invariant=True)
    x = torch.randn(300, 2048, device="cuda").to(dtype)
    together = layer.apply(tensors, x, None)
    for m in (1, 7, 64, 200):
        assert torch.equal(layer.apply(tensors, x[:m], None), together[:m])


@pytest.mark.parametrize("in_blocks", [False, True])
def test_graphs_strides_and_compilation(cuda, in_blocks):
    skip_without_wgmma(in_blocks)
    layer, tensors, _ = made(SCHEMES[1], (384,), 1024, torch.bfloat16, in_blocks)
    layer.warmup((1, 40, 300))
    for m in (1, 40, 300):
        x = torch.randn(m, 1024, device="cuda", dtype=torch.bfloat16)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = layer.apply(tensors, x, None)
        x.normal_()
        graph.replay()
        assert torch.equal(found, layer.apply(tensors, x, None))
        wide = torch.randn(1024, m, device="cuda", dtype=torch.bfloat16).t()
        assert torch.equal(
            layer.apply(tensors, wide, None), layer.apply(tensors, wide.contiguous(), None)
        )
    run = torch.compile(lambda x: layer.apply(tensors, x * 2, None) + 1, fullgraph=True)
    x = torch.randn(5, 1024, device="cuda", dtype=torch.bfloat16)
    assert torch.allclose(run(x), layer.apply(tensors, x * 2, None) + 1, rtol=1e-2, atol=1e-2)


FILES = ("ct-nvfp4a16", "modelopt-nvfp4-w4a16", "ct-mxfp4a16", "gptoss-mxfp4-even")
IDS = torch.arange(3, 60)[None]


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS.to(model.device)).logits.float().cpu()


@pytest.mark.parametrize("name", FILES)
def test_checkpoints_equal_the_cpu(cuda, shared, name):
    if not (shared / "models" / name).is_dir():
        pytest.skip(f"needs the shared checkpoint {name}")
    here = quantdock.load(shared / "models" / name, device="cuda", dtype="bfloat16")
    kernels = {layer.kernel for layer in here.quantdock_plan.layers if layer.kernel}
    is_hopper = torch.cuda.get_device_capability() == (9, 0)
    linear = "cuda_fp4a16_wgmma" if is_hopper else "cuda_fp4a16"
    wanted = f"{linear}_experts" if name.startswith("gptoss") else linear
    assert kernels == {wanted}
    there = quantdock.load(shared / "models" / name, device="cpu", dtype="float32")
    found, expected = logits(here)[0], logits(there)[0]
    # In 16 bits one token in some of these goes to another expert, on the CPU too.
    errors = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert errors.median() <= 0.025 and (errors > 0.1).sum() <= 1


def test_inputs_stay_as_given_where_both_are_quantized(cuda, shared):
    if not (shared / "models" / "ct-nvfp4").is_dir():
        pytest.skip("needs the shared checkpoint ct-nvfp4")
    model = quantdock.load(shared / "models" / "ct-nvfp4", device="cuda", dtype="bfloat16")
    targets = {p.substitution.target for p in model.quantdock_plan.layers if p.substitution}
    assert targets == {"fp4_e2m1[1x16]:e4m3:second[*x*]"}
    assert torch.isfinite(logits(model)).all()
