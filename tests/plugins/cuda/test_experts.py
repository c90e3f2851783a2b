"""Experts that run whole on NVIDIA GPUs: which kernel takes which, their weights, and the CPU."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from integer_weights import assert_same, make_integers, with_half_scales
from quantdock import Policy, dispatch_for
from quantdock.kernel import Problem
from quantdock.kernels.expert_activation import ACTIVATIONS
from quantdock.kernels.expert_loop import ExpertLoop
from quantdock.kernels.row_by_row import RowByRow, kernel_of
from quantdock.numerics import join, quantize_weight
from quantdock.problem import ExpertProblem
from quantdock.schemes import parse_scheme
from quantdock.testing import use_plugins

BLOCK = "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"
MXFP4 = "fp4_e2m1[1x32]:e8m0:even"
TAKEN = {
    BLOCK: "cuda_fp8_experts",
    "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic": "cuda_fp8_experts",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic": "cuda_fp8_experts",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]": "cuda_fp8_experts",
    "int8[1x*] x int8[1x*]:dynamic": "cuda_int8_experts",
    "fp8_e4m3[1x*]": "cuda_w8a16_experts",
    "int4[1x32]": "cuda_w4a16_experts",
    "uint4[1x32]:zero": "cuda_w4a16_experts",
    "int8[1x*]": "cuda_w4a16_experts",
    MXFP4: "cuda_fp4a16_wgmma_experts",
    "fp4_e2m1[1x16]:e4m3:second[*x*]": "cuda_fp4a16_wgmma_experts",
    "fp6_e3m2[1x32]:e8m0:even": "cuda_fp4a16_experts",
}
REQUIRED = {
    "scaled": ("weight", "weight_scale"),
    "packed": ("weight_words", "group_scale"),
    "small_float": ("weight_words", "weight_scale_bytes"),
    "packed_float": ("weight_words", "weight_scale_bytes", "weight_scale_2"),
}
H, I, E = 96, 64, 3  # noqa: E741


def problem(text, dtype="bfloat16", **more):
    scheme = parse_scheme(text)
    facts = {
        "w2": scheme,
        "num_experts": E,
        "intermediate": I,
        "activation": "silu",
        "w13_order": "gate_up",
        "top_k": 2,
    }
    experts = ExpertProblem(**(facts | more))
    return Problem(
        scheme=scheme, n=2 * I, k=H, shards=(I, I), dtype=dtype, kind="experts",
        experts=experts,
    )  # fmt: skip


def select(arch, text, policy=None, **more):
    whole = problem(text, **more)
    linear = (Problem(scheme=whole.scheme, n=2 * I, k=H), Problem(scheme=whole.scheme, n=H, k=I))
    with use_plugins("quantdock_cuda.plugin"):
        return dispatch_for(f"cuda:{arch}", policy or Policy()).select_experts(whole, linear)


@pytest.mark.parametrize("text", TAKEN)
def test_hopper_runs_them_whole(text):
    (found,) = select("sm_90", text)
    assert found.kernel.name == TAKEN[text] and found.substitution is None


@pytest.mark.parametrize("text", [t for t in TAKEN if t.startswith("fp8")])
def test_fp8_is_weight_only_where_there_are_no_units(text):
    (found,) = select("sm_80", text)
    assert found.kernel.name == "cuda_w8a16_experts"


@pytest.mark.parametrize("order", ["gate_up", "interleaved", "up"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_function_that_has_a_name(activation, order):
    (found,) = select("sm_90", MXFP4, activation=activation, w13_order=order, has_bias=True)
    assert found.kernel.name == "cuda_fp4a16_wgmma_experts"


@pytest.mark.parametrize("arch, more", [("sm_80", {}), ("sm_90", {"dtype": "float16"})])
def test_codes_of_fp4_lie_in_runs_elsewhere_and_in_float16(arch, more):
    (found,) = select(arch, MXFP4, **more)
    assert found.kernel.name == "cuda_fp4a16_experts"


@pytest.mark.parametrize(
    "text, more, reason",
    [
        (BLOCK, {"activation": ""}, "not a function of no known name"),
        ("int4[1x32]:act-order", {}, "groups in any order, it takes a fixed one"),
        ("int4[1x32]", {"intermediate": 48}, "I=48 is no multiple of 32"),
        *(
            (text, {"dtype": "float32"}, "takes bfloat16, float16 activations, not float32")
            for text in ("int4[1x32]", MXFP4, "fp8_e4m3[1x*]")
        ),
    ],
)
def test_others_go_through_the_loop_with_a_reason(text, more, reason):
    w13, w2 = select("sm_90", text, **more)
    assert "experts" not in w13.kernel.kinds | w2.kernel.kinds
    assert any(reason in why for r in w13.rejected for why in r.reasons)


@pytest.mark.parametrize("text", TAKEN)
def test_tokens_can_be_computed_as_if_they_were_alone(text):
    (found,) = select("sm_90", text, Policy(batch_invariant=True))
    assert found.kernel.name == TAKEN[text] and found.problem.batch_invariant
    assert found.warnings == ()


def made(text, policy=None):
    """Return (kernel, stacked tensors, [(w13, w2)])."""
    with use_plugins("quantdock_cuda.plugin"):
        kernel = kernel_of(dispatch_for("cuda:sm_90", policy or Policy()).select(problem(text)))
    spec = parse_scheme(text).weight
    weights = [
        (
            join([quantize_weight(torch.randn(I, H), spec) for _ in range(2)]),
            quantize_weight(torch.randn(H, I), spec),
        )
        for _ in range(E)
    ]
    prepared = [kernel.prepare(*pair) for pair in weights]
    return kernel, {n: torch.stack([one[n] for one in prepared]) for n in prepared[0]}, weights


@pytest.mark.parametrize("text", [t for t in TAKEN if "*x*] x fp8_e4m3[*x*]" not in t])
def test_going_back_gives_every_bit(text):
    kernel, stacked, weights = made(text)
    for expert, pair in enumerate(weights):
        found = kernel.restore({name: tensor[expert] for name, tensor in stacked.items()})
        for one, other in zip(pair, found, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize(
    "linear", ["packed_linear:CudaPackedLinear", "dense_copy:CopiedPackedLinear"]
)
def test_experts_have_one_dtype_whatever_their_numbers_are(linear, monkeypatch):
    """A linear layer has scales in float16 where that is exact, which it is of some experts."""
    monkeypatch.setattr("quantdock_cuda.packed_linear.reads_half", lambda tensor: True)
    text, (module, _, name) = "uint4[1x32]:zero", linear.partition(":")
    one = replace(problem(text), n=H, k=H, shards=(H,), kind="linear", experts=None)
    kernel = getattr(import_module(f"quantdock_cuda.{module}"), name)(one)
    loop = ExpertLoop(w13=kernel, w2=RowByRow(kernel), gate=lambda hidden: hidden, num_experts=2)
    exact = with_half_scales(make_integers(text, (H,), H))
    assert kernel.prepare(exact)["group_scale"].dtype == torch.float16
    made = [loop.prepare(weight, weight) for weight in (exact, make_integers(text, (H,), H))]
    kinds = [{name: tensor.dtype for name, tensor in tensors.items()} for tensors in made]
    assert kinds[0] == kinds[1] and kinds[0]["w13_group_zero"] == torch.float32
    for found in loop.restore(made[0]):
        assert_same(exact, found)


@pytest.mark.parametrize("text", TAKEN)
def test_what_is_warmed_up_has_the_tensors_of_experts(text):
    from quantdock_cuda.experts import zeros

    with use_plugins("quantdock_cuda.plugin"):
        kernel = kernel_of(dispatch_for("cuda:sm_90").select(problem(text)))
    tensors = kernel.prepare(*(zeros(matrix, "cpu") for matrix in kernel._matrices))
    assert {f"{m}_{n}" for m in ("w13", "w2") for n in REQUIRED[kernel.products]} <= tensors.keys()
    scales = [t.tolist() for name, t in tensors.items() if name.endswith("input_scale")]
    assert scales == ([[1.0, 1.0], [1.0]] if parse_scheme(text).is_static else [])


@pytest.mark.parametrize("text", [BLOCK, MXFP4, "int4[1x32]", "fp8_e4m3[1x*]"])
def test_on_the_cpu_the_loop_runs_and_has_gradients(text):
    kernel, stacked, weights = made(text)
    x, routing = torch.randn(5, H, requires_grad=True), torch.rand(5, 2)
    ids = torch.tensor([[0, 1], [1, 3], [2, 0], [3, 3], [1, 2]])
    found = kernel.apply(stacked, x, routing, ids)
    expected = torch.zeros(5, H)
    for expert, (w13, w2) in enumerate(weights):
        gate, up = (x.detach() @ w13.dequantize().T).chunk(2, dim=1)
        share = (routing * (ids == expert)).sum(1, keepdim=True)
        expected += share * ((torch.nn.functional.silu(gate) * up) @ w2.dequantize().T)
    limit = 0.1 if text == BLOCK else 1e-4  # that of codes of x
    assert (found - expected).norm() <= limit * expected.norm()
    assert kernel.apply_partial(stacked, x, routing, ids).dtype == torch.float32
    found.sum().backward()
    assert x.grad is not None and x.grad[0].any() and not x.grad[3].any()


@pytest.mark.parametrize("copied", [deepcopy, lambda kernel: pickle.loads(pickle.dumps(kernel))])
@pytest.mark.parametrize("text", [BLOCK, "int4[1x32]"])
def test_a_copy_of_a_kernel_computes_the_same(text, copied):
    """As that of a model that torch.save writes, or that goes to another process."""
    kernel, stacked, _ = made(text)
    given = torch.randn(5, H), torch.rand(5, 2), torch.randint(0, E, (5, 2))
    assert torch.equal(copied(kernel).apply(stacked, *given), kernel.apply(stacked, *given))


@pytest.mark.parametrize("text", ["int4[1x32]", MXFP4])
def test_the_loop_too_computes_each_token_as_if_it_were_alone(text):
    kernel, stacked, _ = made(text, Policy(batch_invariant=True))
    x, routing = torch.randn(70, H), torch.rand(70, 2)
    ids = torch.rand(70, E).argsort(dim=1)[:, :2]
    given = (x, routing, ids)
    for step in (kernel.apply, kernel.apply_partial):
        whole = step(stacked, *given)
        for rows in (slice(0, 1), slice(20, 60)):
            assert torch.equal(step(stacked, *(t[rows] for t in given)), whole[rows])


@pytest.mark.parametrize("name", ["x", "weights", "w13_bias", "w2_bias", None])
def test_what_is_trained_goes_through_the_loop(name):
    kernel, stacked, _ = made(MXFP4)
    given = {
        one: SimpleNamespace(is_cuda=True, dtype=torch.bfloat16, requires_grad=one == name)
        for one in ("x", "weights", "w13_bias", "w2_bias")
    }
    x, weights = given.pop("x"), given.pop("weights")
    assert kernel._runs(stacked | given, x, weights) is (name is None)
    with torch.no_grad():
        assert kernel._runs(stacked | given, x, weights)


@pytest.mark.parametrize("text", ["fp8_e4m3[1x*] x fp8_e4m3[*x*]", BLOCK])
def test_calls_with_other_numbers_of_input_scales_are_of_another_kind(text):
    from quantdock_cuda.expert_execution import ExpertExecution
    from quantdock_cuda.experts import CudaScaledExperts, zeros

    run, kinds = ExpertExecution.__new__(ExpertExecution), []
    run._replays = lambda kind, *tensors: kinds.append(kind)
    for shards in ((I, I), (2 * I,)):
        kernel = CudaScaledExperts(replace(problem(text), shards=shards))
        one = kernel.prepare(*(zeros(matrix, "cpu") for matrix in kernel._matrices))
        stacked = {name: torch.stack([tensor] * E) for name, tensor in one.items()}
        routing = torch.ones(1, 2), torch.zeros(1, 2, dtype=torch.int64)
        run.again(torch.zeros(1, H), *routing, [stacked.get(name) for name in kernel._names])
    assert (kinds[0] == kinds[1]) is (text == BLOCK)


@pytest.mark.parametrize("shared_bytes", [232448, 166912, 101376])
@pytest.mark.parametrize("rows", [1, 8, 16, 64, 128, 1024])
def test_tiles_fit_every_architecture(shared_bytes, rows):
    from quantdock_cuda.device import Device
    from quantdock_cuda.expert_tiles import packed_tile, scaled_tile, small_float_tile
    from quantdock_triton.packed_layout import Packing
    from quantdock_triton.small_float_matmul import SmallFloat
    from quantdock_triton.tile import Form

    device = Device(arch="sm_x", features=frozenset(), num_sms=108, shared_bytes=shared_bytes)
    block = Form(x_cols=128, weight_cols=128, weight_rows=128)
    for form in (block, Form(), Form(weight_only=True)):
        tile = scaled_tile(form, device, 2048, rows)
        assert tile.shared_bytes(form) <= shared_bytes - 4096
        assert tile.m == scaled_tile(block, device, 8192, rows).m
    for group, bits in ((16, 4), (32, 4), (32, 6)):
        element = "fp4_e2m1" if bits == 4 else "fp6_e2m3"
        kinds = [SmallFloat(element=element, group=g, scale="e8m0") for g in (group, 32)]
        tiles = [small_float_tile(kind, device, rows) for kind in kinds]
        assert tiles[0].shared_bytes(kinds[0].packing) <= shared_bytes - 4096
        assert tiles[0].m == tiles[1].m
    packings = [Packing(bits=b, plane=p, group=128) for b in (4, 8) for p in (64, 32)]
    heights = {packed_tile(p, device, rows, is_first=f).m for p in packings for f in (True, False)}
    assert len(heights) == 1


def test_rows_of_an_expert_come_in_powers_of_two():
    from quantdock_cuda.expert_tiles import bucket

    assert [bucket(n, 4) for n in (1, 4, 5, 9, 17, 4096)] == [1, 1, 2, 4, 8, 1024]


@pytest.mark.parametrize(
    "text, more, has_pairs",
    [
        (BLOCK, {}, True),
        ("fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic", {}, True),
        ("int8[1x*] x int8[1x*]:dynamic", {}, True),
        ("fp8_e4m3[1x*]", {}, True),
        (BLOCK, {"alone": True}, False),
        (BLOCK, {"intermediate": 14336}, False),
        ("fp8_e4m3[*x*] x fp8_e4m3[*x*]", {}, False),
        ("int4[1x32]", {}, False),
        (MXFP4, {}, False),
    ],
)
def test_few_pairs_are_quantized_where_they_are_multiplied(text, more, has_pairs, monkeypatch):
    from quantdock_cuda import expert_execution, expert_packed_products, expert_products
    from quantdock_cuda.device import Device

    kinds = {"int4[1x32]": "packed", MXFP4: "packed_float"}
    facts = {"activation": "silu", "order": "gate_up", "num_experts": 8, "hidden": 2048}
    facts |= {"intermediate": 768, "products": kinds.get(text, "scaled"), "schemes": (text, text)}
    experts = expert_execution.Experts(**(facts | more))
    features = frozenset({"fp8_mma", "wgmma", "tma", "dependent_launch"})
    device = Device(arch="sm_90", features=features, num_sms=132, shared_bytes=232448)
    for module in (expert_execution, expert_packed_products, expert_products):
        monkeypatch.setattr(module, "device_of", lambda index: device)
    run = expert_execution.execution.__wrapped__(experts, (12, 16), 0)
    assert (run._pairs is not None) is has_pairs
