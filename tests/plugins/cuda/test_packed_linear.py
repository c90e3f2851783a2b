"""Integer weights on NVIDIA GPUs: what the descriptor takes, the layout, and layers on the CPU."""

from __future__ import annotations

import pytest
import torch

from integer_weights import assert_same, make_integers, with_half_scales
from quantdock import Policy, dispatch_for
from quantdock.configs.awq import AWQConfig
from quantdock.configs.gptq import GPTQConfig
from quantdock.configs.gptq_codes import encode_gptq
from quantdock.configs.repacked import AWQMarlinConfig, GPTQMarlinConfig
from quantdock.errors import FormatError, NoKernelError
from quantdock.kernel import Problem
from quantdock.kernels import oracle
from quantdock.layers import RowParallelLinear
from quantdock.schemes import parse_scheme
from quantdock.testing import use_plugins
from toy_gptq import in_act_order
from toy_ranks import filled, ranks, weight_of

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
SCHEMES = (
    "int4[1x128]",
    "int4[1x*]",
    "uint4[1x32]:zero",
    "uint4[1x64]:zero:act-order",
    "int4[1x32]:act-order",
    "int3[1x64]",
    "uint2[1x32]:zero",
    "int8[1x128]:act-order",
    "int8[1x*]",
    "uint8[1x32]:zero",
    "uint5[1x96]:zero",
    "int4[1x128] + input multiplier",
)


def made(text, sizes, k, **options):
    """Return (layer, its tensors, canonical weight)."""
    from quantdock_cuda.packed_linear import CudaPackedLinear

    weight = make_integers(text, sizes, k, **options)
    problem = Problem(
        scheme=parse_scheme(text), n=sum(sizes), k=k, shards=tuple(sizes), dtype="bfloat16"
    )
    layer = CudaPackedLinear(problem)
    return layer, layer.prepare(weight), weight


@pytest.mark.parametrize("text", SCHEMES)
@pytest.mark.parametrize("sizes, k", [((70,), 160), ((64, 33, 8), 384)])
def test_going_back_gives_every_bit(text, sizes, k):
    layer, tensors, weight = made(text, sizes, k)
    assert all(t.is_contiguous() for t in tensors.values())
    assert_same(weight, layer.restore(tensors))


def test_scales_are_halves_where_no_number_changes():
    from quantdock_cuda.packed_execution import in_half

    scale, zero = torch.tensor([[0.5, -0.125], [2.0**-24, 65504.0]]), torch.full((2, 2), 2048.0)
    half, half_zero = in_half(scale, zero)
    assert half.dtype == half_zero.dtype == torch.float16
    assert torch.equal(half.float(), scale) and torch.equal(half_zero.float(), zero)
    for other in (0.1, 2.0**-25, 65536.0, torch.nan):  # of all, or of none
        given = torch.tensor([[0.5, -0.125], [1.0, other]])
        assert in_half(given, zero) == (given, zero)
    odd = zero + 1
    assert in_half(scale, odd) == (scale, odd)
    one = scale[:, :1], zero[:, :1]  # those of two rows are copied at once
    assert in_half(*one) == one


def test_what_is_loaded_again_is_of_the_dtype_that_it_had_where_that_holds_it(monkeypatch):
    """So that its place stays, for graphs that were captured."""
    monkeypatch.setattr("quantdock_cuda.packed_linear.reads_half", lambda tensor: True)
    layer, tensors, weight = made("uint4[1x32]:zero", (64,), 64)
    assert tensors["group_scale"].dtype == torch.float32
    exact = with_half_scales(weight)
    assert layer.prepare(exact)["group_scale"].dtype == torch.float32
    assert type(layer)(layer.problem).prepare(exact)["group_zero"].dtype == torch.float16


def test_shards_may_have_orders_of_their_own():
    layer, tensors, weight = made("uint4[1x32]:zero:act-order", (40, 24), 160, shared=False)
    assert tensors["weight_order"].shape == (2, 160)
    assert_same(weight, layer.restore(tensors))


@pytest.mark.parametrize("text", SCHEMES)
def test_a_layer_that_is_offloaded_runs_on_the_cpu(text):
    layer, tensors, weight = made(text, (40, 24), 160)
    x, bias = torch.randn(2, 3, 160).to(torch.bfloat16), torch.randn(64).to(torch.bfloat16)
    expected = oracle.linear(parse_scheme(text), weight, x, bias).float()
    found = layer.apply(tensors, x, bias)
    assert found.dtype == torch.bfloat16 and found.shape == (2, 3, 64)
    assert (found.float() - expected).norm() / expected.norm() < 2.0**-7
    assert layer.apply(tensors, x[:, :0], bias).shape == (2, 0, 64)


def test_partial_sums_are_not_rounded():
    layer, tensors, weight = made("uint4[1x32]:zero", (64,), 160)
    x = torch.randn(3, 160).to(torch.bfloat16)
    found = layer.apply_partial(tensors, x)
    expected = oracle.linear(parse_scheme("uint4[1x32]:zero"), weight, x.float())
    assert found.dtype == torch.float32
    assert (found - expected).norm() / expected.norm() < 1e-6


def test_unequal_groups_are_refused():
    with pytest.raises(FormatError, match="has groups of unequal size"):
        made("int4[1x32]:act-order", (64,), 160, equal=False)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_divide_act_order_are_refused_before_that_or_run_the_reference(cuda_alone, size):
    tensors, real = encode_gptq(in_act_order(128, 256, 64)), in_act_order(128, 256, 64).dequantize()
    block = {**GPTQ, "group_size": 64, "sym": False}

    def layers(size, policy):
        config = GPTQMarlinConfig if policy.require is None else GPTQConfig
        config = config.from_config(block).bind(dispatch_for("cuda:sm_90", policy))
        made = (
            RowParallelLinear(256, 128, False, quant_config=config, group=g) for g in ranks(size)
        )
        return [filled(layer, [tensors]) for layer in made]

    (whole,) = layers(1, Policy())
    assert whole.quant_method.selection.kernel.name == "cuda_w4a16"
    with pytest.raises(NoKernelError) as caught:
        layers(size, Policy())
    assert "cuda_w4a16: sorts columns by group, and groups are of unequal size" in caught.value.why
    parts = layers(size, Policy(require="reference"))
    assert torch.equal(torch.cat([weight_of(part) for part in parts], 1), real)


def test_zero_points_that_are_not_exact_are_refused():
    layer, _, weight = made("uint4[1x32]:zero", (64,), 160)
    weight.segments[0].zero[3, 2] = 128
    with pytest.raises(FormatError, match="zero points from 0 to 128"):
        layer.prepare(weight)


def test_tracing_knows_the_result():
    _, tensors, _ = made("uint4[1x32]:zero", (64,), 160)
    torch.library.opcheck(
        torch.ops.quantdock.cuda_packed_linear.default,
        (torch.randn(3, 160), tensors["weight_words"], tensors["group_scale"],
         tensors["group_zero"], None, None, None, "uint4[1x32]:zero", 160, [64], False, False),
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip


@pytest.mark.parametrize("scheme", ["int4[1x32] + input multiplier", "uint4[1x32]:zero:act-order"])
def test_gradients_are_those_of_the_dequantized_layer(scheme):
    layer, tensors, weight = made(scheme, (64, 16), 160)
    for x in (torch.ones(2, 160), torch.ones(2, 160, dtype=torch.bfloat16)):
        x.requires_grad_()
        layer.apply(tensors, x, None).sum().backward()
        expected = weight.dense().sum(0).to(x.dtype).expand(2, -1)
        torch.testing.assert_close(x.grad, expected, rtol=1e-2, atol=1e-3)
        x.grad = None
        layer.apply_partial(tensors, x).sum().backward()
        torch.testing.assert_close(x.grad, expected, rtol=1e-2, atol=1e-3)


@pytest.fixture
def cuda_alone():
    with use_plugins("quantdock_cuda.plugin"):
        yield


@pytest.mark.parametrize("text", SCHEMES)
@pytest.mark.parametrize("arch", ARCHS)
def test_every_architecture_with_bfloat16_runs_them(cuda_alone, arch, text):
    problem = Problem(scheme=parse_scheme(text), n=256, k=384, dtype="float16")
    chosen = dispatch_for(f"cuda:{arch}").select(problem)
    assert (chosen.kernel.name, chosen.substitution) == ("cuda_w4a16", None)


@pytest.mark.parametrize(
    "text, k, dtype, reason",
    [
        ("int4[1x16]", 384, "bfloat16", "groups of 16, no multiple of 32"),
        ("int4[1x32]", 100, "bfloat16", "K=100 is no multiple of 32"),
        ("int4[1x32]", 384, "float64", "takes bfloat16, float16, float32 activations, not float64"),
        ("int4[128x128]", 384, "bfloat16", "tile is block"),
    ],
)
def test_what_it_does_not_run_is_told(cuda_alone, text, k, dtype, reason):
    problem = Problem(scheme=parse_scheme(text), n=256, k=k, dtype=dtype)
    with pytest.raises(NoKernelError) as caught:
        dispatch_for("cuda:sm_90").select(problem)
    assert reason in str(caught.value)


def test_sm_75_runs_none(cuda_alone):
    problem = Problem(scheme=parse_scheme("int4[1x128]"), n=256, k=384)
    with pytest.raises(NoKernelError, match=r"cuda_w4a16: cuda:sm_75 lacks \['bf16_mma'\]"):
        dispatch_for("cuda:sm_75").select(problem)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    "repacked, block",
    [
        (GPTQMarlinConfig, GPTQ),
        (GPTQMarlinConfig, {**GPTQ, "bits": 8, "desc_act": False}),
        (GPTQMarlinConfig, {**GPTQ, "bits": 3, "group_size": -1, "desc_act": False}),
        (AWQMarlinConfig, AWQ),
    ],
)
def test_files_of_gptq_and_awq_are_taken_over(cuda_alone, repacked, block, arch):
    dispatch = dispatch_for(f"cuda:{arch}")
    found = repacked.claim(block, None, dispatch.platform, dispatch.kernels)
    assert found is not None and found.startswith("cuda_w4a16 repacks")
    old = dispatch_for("cuda:sm_75")
    assert repacked.claim(block, None, old.platform, old.kernels) is None


@pytest.mark.parametrize("plain, block", [(GPTQConfig, GPTQ), (AWQConfig, AWQ)])
def test_asked_for_by_their_own_names_they_are_left_as_they_are(cuda_alone, plain, block):
    config = plain.from_config(block)
    scheme = parse_scheme("int4[1x128]:act-order")
    problem = Problem(scheme=scheme, n=256, k=384, repacked=False)
    with pytest.raises(NoKernelError, match="repacks codes, which the method"):
        dispatch_for("cuda:sm_90", Policy()).select(problem)
    assert config.repacked is not True
