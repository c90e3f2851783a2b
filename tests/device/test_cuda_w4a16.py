"""On an NVIDIA GPU: layers of integer weights beside the oracle, at the edges of their shapes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

import quantdock
from integer_weights import assert_same, make_integers, on_device, with_half_scales
from quantdock.errors import FormatError
from quantdock.kernel import Problem
from quantdock.kernels import oracle
from quantdock.schemes import parse_scheme

pytestmark = [
    pytest.mark.device,
    # torch 2.11's own use of torch.jit, when it compiles.
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*TensorFloat32 tensor cores.*:UserWarning"),
]
ROWS = (0, 1, 3, 16, 17, 64, 129, 300, 512)
GROUPS = ("32", "64", "128", "*")
INTEGERS = ("int4", "uint4:zero", "int8", "uint8:zero")
OTHERS = (
    "int2[1x32]",
    "uint3[1x128]:zero",
    "int6[1x64]",
    "uint4[1x96]:zero",
    "int4[1x256]",
    "uint4[1x64]:zero:act-order",
    "int4[1x128]:act-order",
    "int8[1x32]:act-order",
    "uint4[1x128]:zero + input multiplier",
    "int8[1x*] + input multiplier",
)
EXACT, FOLDED = 2.0**-8, 2.0**-7  # what x's dtype rounds off; scales rounded to 16 bits too
IDS = torch.arange(3, 60)[None]


def spelled(element, group):
    name, _, mark = element.partition(":")
    return f"{name}[1x{group}]" + (f":{mark}" if mark else "")


def made(text, sizes, k, dtype=torch.bfloat16, alone=False, half=False, **options):
    """Return (layer, its tensors on the GPU, canonical weight on the CPU).

    alone: each row is computed as if it were alone. half: scales are numbers of float16.
    """
    from quantdock_cuda.packed_linear import CudaPackedLinear

    weight = make_integers(text, sizes, k, **options)
    weight = with_half_scales(weight) if half else weight
    name = str(dtype).removeprefix("torch.")
    problem = Problem(
        scheme=parse_scheme(text),
        n=sum(sizes),
        k=k,
        shards=tuple(sizes),
        dtype=name,
        batch_invariant=alone,
    )
    layer = CudaPackedLinear(problem)
    return layer, layer.prepare(on_device(weight, "cuda")), weight


def assert_equal(found, expected, what):
    """Compare bits; what fails says how many values differ, and by how much at most."""
    apart = (found.float() - expected.float()).abs()
    some = (
        f"{int((apart > 0).sum())} of {apart.numel()} differ, by {float(apart.max()):.1e} at most"
    )
    assert torch.equal(found, expected), f"{what}: {some}"


def expected_of(scheme, weight, x, bias):
    """Return the oracle's result, of x times its multiplier in x's dtype, as the kernel has it.

    For one row that rounding alone may be 0.8 of EXACT.
    """
    if weight.input_multiplier is not None:
        x = (x.float() * weight.input_multiplier).to(x.dtype)
        scheme = replace(scheme, input_multiplier=False)
        weight = replace(weight, input_multiplier=None)
    return oracle.linear(scheme, weight, x, bias)


def check(text, sizes, k, dtype=torch.bfloat16, rows=ROWS, bias=False, **options):
    layer, tensors, weight = made(text, sizes, k, dtype, **options)
    added = torch.randn(sum(sizes)).to(dtype) if bias else None
    for m in rows:
        x = torch.randn(m, k).to(dtype)
        expected = expected_of(parse_scheme(text), weight, x, added)
        found = layer.apply(tensors, x.cuda(), None if added is None else added.cuda())
        assert found.dtype == dtype and found.shape == expected.shape
        error = (found.cpu().float() - expected.float()).norm()
        limit = (EXACT if m <= 32 else FOLDED) * expected.float().norm()
        assert error <= limit, f"{text} M={m} K={k} {dtype}: {error / expected.float().norm():.1e}"


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("element, group", list(product(INTEGERS, GROUPS)))
def test_equals_the_oracle(cuda, element, group, half):
    rows = ROWS[GROUPS.index(group) % 2 :: 2]
    check(spelled(element, group), (200,), 1024, rows=rows, half=half)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(
    "element, group", [("uint4", 128), ("uint4", 32), ("uint8", 64), ("uint4", "*")]
)
def test_scales_in_half_change_no_bit(cuda, element, group, alone):
    """Nor at an odd first row of a shard, and where the last block is not filled."""
    text, names = spelled(f"{element}:zero", group), ("group_scale", "group_zero")
    layer, tensors, weight = made(text, (1001, 197), 1024, alone=alone, half=True)
    assert {tensors[name].dtype for name in names} == {torch.float16}
    wide = {**tensors, **{name: tensors[name].float() for name in names}}
    for m in (1, 8, 16, 32, 64, 128, 300):
        x = torch.randn(m, 1024, device="cuda", dtype=torch.bfloat16)
        assert_equal(layer.apply(tensors, x, None), layer.apply(wide, x, None), f"M={m}")
    assert_same(weight, layer.restore({name: t.cpu() for name, t in tensors.items()}))


EDGES = ("uint4[1x128]:zero", "int4[1x32]", "uint8[1x64]:zero", "int8[1x*]")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("text", EDGES)
def test_edges_of_blocks_and_biases(cuda, text, dtype):
    check(text, (100,), 352, dtype, rows=(1, 20, 40, 200, 300), bias=True, half=True)


@pytest.mark.parametrize("text", OTHERS)
def test_other_integers_orders_and_multipliers(cuda, text):
    check(text, (70,), 768, rows=(1, 17, 129, 300))


@pytest.mark.parametrize("text", ["uint4[1x128]:zero", "int4[1x32]:act-order"])
def test_fused_shards(cuda, text):
    check(text, (256, 64, 33), 512, rows=(1, 40, 300), bias=True)


def test_shards_with_orders_of_their_own(cuda):
    sizes, rows = (100, 65, 29), (1, 40, 300)  # the last shard begins between rows copied at once
    check("uint4[1x64]:zero:act-order", sizes, 512, rows=rows, shared=False, half=True)


@pytest.mark.parametrize("columns", [384, 767, 1536])
def test_an_x_of_another_width_is_refused(cuda, columns):
    layer, tensors, _ = made("int4[1x32]", (70,), 768)
    x = torch.ones(4, columns, dtype=torch.bfloat16, device="cuda")
    for _ in range(2):
        with torch.no_grad(), pytest.raises(FormatError, match="768 input features"):
            layer.apply(tensors, x, None)


@pytest.mark.parametrize("text", ["int4[1x32] + input multiplier", "uint4[1x64]:zero:act-order"])
def test_gradients_are_those_of_the_dequantized_layer(cuda, text):
    """Tolerance: the gradient is rounded to x's dtype."""
    layer, tensors, weight = made(text, (70,), 768)
    x = torch.randn(5, 768).bfloat16().cuda().requires_grad_()
    given = torch.randn(5, 70).bfloat16()
    layer.apply(tensors, x, None).backward(given.cuda())
    expected = given.double() @ weight.dense().double()
    assert (x.grad.cpu().double() - expected).norm() <= EXACT * expected.norm()


@pytest.mark.parametrize("text", ["int4[1x128]", "uint8[1x32]:zero"])
def test_every_code_is_read_back(cuda, text):
    """With the unit vectors as x, the result is the weight itself."""
    layer, tensors, weight = made(text, (130,), 512)
    expected = weight.dequantize().T
    for rows in (slice(0, 16), slice(16, 48), slice(48, 112), slice(112, 360), slice(0, 512)):
        found = layer.apply(tensors, torch.eye(512, dtype=torch.bfloat16).cuda()[rows], None)
        assert (found.cpu().float() - expected[rows]).abs().max() <= 2.0**-7 * expected.abs().max()
    assert_same(weight, layer.restore({name: t.cpu() for name, t in tensors.items()}))


@pytest.mark.parametrize("m", [1, 16, 40, 200, 300])
def test_nan_stays_where_it_is(cuda, m):
    layer, tensors, _ = made("uint4[1x32]:zero", (200,), 352)
    x = torch.randn(m + 1, 352, device="cuda", dtype=torch.bfloat16)
    x[m // 2, 33] = torch.nan
    tensors["group_scale"][2, 5] = torch.nan
    found = layer.apply(tensors, x, None).isnan()
    assert found[m // 2].all() and found[:, 5].all()
    found[m // 2], found[:, 5] = False, False
    assert not found.any()


@pytest.mark.parametrize("text", ["uint4[1x128]:zero", "int8[1x*]"])
@pytest.mark.parametrize("m, n", [(8, 512), (16, 512), (64, 4096), (128, 4096), (300, 4096)])
def test_results_do_not_change_between_runs(cuda, text, m, n):
    layer, tensors, _ = made(text, (n,), 4096)
    x = torch.randn(m, 4096, device="cuda", dtype=torch.bfloat16)
    first = layer.apply(tensors, x, None)
    for turn in range(20):
        assert_equal(layer.apply(tensors, x, None), first, f"turn {turn}")


TOGETHER = (1, 3, 17, 64, 200, 700)


SIZES = ((320, torch.bfloat16), (4096, torch.bfloat16), (320, torch.float16), (4096, torch.float32))


@pytest.mark.parametrize("n, dtype", SIZES, ids=str)
@pytest.mark.parametrize("text", ["uint4[1x128]:zero", "int4[1x32]", "int8[1x*]"])
def test_rows_are_what_they_are_alone(cuda, text, n, dtype):
    layer, tensors, weight = made(text, (n,), 2048, dtype, alone=True)
    x = torch.randn(max(TOGETHER), 2048, device="cuda").to(dtype)
    together = layer.apply(tensors, x, None)
    for m in TOGETHER:
        assert_equal(layer.apply(tensors, x[:m], None), together[:m], f"first {m} rows")
        assert_equal(layer.apply(tensors, x[-m:], None), together[-m:], f"last {m} rows")
    expected = oracle.linear(parse_scheme(text), weight, x[:64].cpu(), None).float()
    error = (together[:64].cpu().float() - expected).norm()
    assert error <= FOLDED * expected.norm()


def test_rows_are_what_they_are_alone_in_f32_in_act_order_and_in_a_graph(cuda):
    layer, tensors, _ = made("uint4[1x128]:zero:act-order", (512,), 2048, alone=True)
    x = torch.randn(300, 2048, device="cuda", dtype=torch.bfloat16)
    together, partial = layer.apply(tensors, x, None), layer.apply_partial(tensors, x)
    for m in TOGETHER[:-1]:
        assert torch.equal(layer.apply(tensors, x[:m], None), together[:m])
        assert torch.equal(layer.apply_partial(tensors, x[:m]), partial[:m])
    layer.warmup((1, 40, 300))
    for m in (1, 40, 300):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = layer.apply(tensors, x[:m], None)
        graph.replay()
        assert torch.equal(found, together[:m])


@pytest.mark.parametrize("text", ["uint4[1x128]:zero", "int4[1x32]:act-order"])
def test_empty_strided_and_batched_inputs(cuda, text):
    layer, tensors, _ = made(text, (320,), 512)
    assert layer.apply(tensors, torch.empty(2, 0, 512, device="cuda"), None).shape == (2, 0, 320)
    wide = torch.randn(6, 5, 1024, device="cuda", dtype=torch.bfloat16)
    for x in (wide[:, 1, :512], wide[:, :, 3:515], wide[:, 2, ::2], wide[..., :512]):
        expected = layer.apply(tensors, x.contiguous(), None)
        assert torch.equal(layer.apply(tensors, x, None), expected)


@pytest.mark.parametrize("m", [1, 40, 300])
def test_partial_sums_and_f32_are_not_rounded(cuda, m):
    layer, tensors, weight = made("uint4[1x128]:zero", (256,), 512)
    x = torch.randn(m, 512).to(torch.bfloat16)
    expected = oracle.linear(parse_scheme("uint4[1x128]:zero"), weight, x.float())
    limit = 1e-5 if m <= 32 else FOLDED
    found = layer.apply_partial(tensors, x.cuda()).cpu()
    assert found.dtype == torch.float32
    assert (found - expected).norm() / expected.norm() < limit
    found = layer.apply(tensors, x.cuda().float(), None).cpu()
    assert (found - expected).norm() / expected.norm() < 1e-5


@pytest.mark.parametrize("text", ["uint4[1x128]:zero", "int4[1x128]:act-order", "int8[1x*]"])
def test_capture_after_warmup(cuda, text):
    layer, tensors, _ = made(text, (384,), 2048, half=True)
    layer.warmup((1, 40, 300))
    for m in (1, 40, 300):
        x = torch.randn(m, 2048, device="cuda", dtype=torch.bfloat16)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = layer.apply(tensors, x, None)
        for _ in range(3):
            x.normal_()
            graph.replay()
            assert torch.equal(found, layer.apply(tensors, x, None))


def test_compiles_to_one_graph(cuda):
    layer, tensors, _ = made("uint4[1x128]:zero", (384,), 2048)
    run = torch.compile(
        lambda x: layer.apply(tensors, x * 2, None) + 1, fullgraph=True, dynamic=True
    )
    for m in (1, 33):
        x = torch.randn(m, 2048, device="cuda", dtype=torch.bfloat16)
        assert torch.equal(run(x), layer.apply(tensors, x * 2, None) + 1)


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS.to(model.device)).logits.float().cpu()


FILES = ("gptq-w4-g64-desc", "gptq-w4-g32-asym-v2", "gptq-w8-g128", "awq-w4-g32",
         "ct-w4a16-g128", "ct-w4a16-asym-g128", "gptq-mixtral-w4-g32")  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_checkpoints_equal_the_cpu(cuda, shared, name):
    if not (shared / "models" / name).is_dir():
        pytest.skip(f"needs the shared checkpoint {name}")
    here = quantdock.load(shared / "models" / name, device="cuda", dtype="bfloat16")
    kernels = {layer.kernel for layer in here.quantdock_plan.layers if layer.kernel}
    assert "cuda_w4a16" in kernels and "reference" not in kernels
    there = quantdock.load(shared / "models" / name, device="cpu", dtype="float32")
    assert (logits(here) - logits(there)).norm() / logits(there).norm() < 0.05
