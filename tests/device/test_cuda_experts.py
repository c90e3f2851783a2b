"""On an NVIDIA GPU: experts that run whole beside the oracle, in CUDA graphs, and compiled."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from quantdock.kernel import Problem
from quantdock.kernels import oracle
from quantdock.kernels.expert_activation import ACTIVATIONS, split_w13
from quantdock.kernels.expert_loop import ExpertLoop
from quantdock.numerics import join, quantize_weight
from quantdock.problem import ExpertProblem
from quantdock.schemes import parse_scheme

pytestmark = [
    pytest.mark.device,
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*TensorFloat32 tensor cores.*:UserWarning"),
]
BLOCK = "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"
MXFP4 = "fp4_e2m1[1x32]:e8m0:even"
NVFP4 = "fp4_e2m1[1x16]:e4m3:second[*x*]"
SCHEMES = (
    BLOCK,
    "fp8_e4m3[128x128]:e8m0:ceil x fp8_e4m3[1x128]:e8m0:ceil:dynamic",
    "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]",
    "int8[1x*] x int8[1x*]:dynamic",
    "fp8_e4m3[1x*]",
    "fp8_e4m3[128x128]",
    "int8[1x*]",
    "int4[1x32]",
    "uint4[1x32]:zero",
    MXFP4,
    NVFP4,
    "fp6_e3m2[1x32]:e8m0:even",
)


def made(text, *, e=6, h=352, i=224, activation="silu", order="gate_up", **policy):
    """Return (kernel, stacked tensors, [(w13, w2)] of each expert), on the GPU."""
    from quantdock import Policy, dispatch_for

    scheme = parse_scheme(text)
    n = i if order == "up" else 2 * i
    sizes = (i, i) if order == "gate_up" else (n,)
    experts = ExpertProblem(
        w2=scheme,
        num_experts=e,
        intermediate=i,
        activation=activation,
        w13_order=order,
        top_k=2,
    )
    problem = Problem(
        scheme=scheme,
        n=n,
        k=h,
        shards=sizes,
        dtype="bfloat16",
        kind="experts",
        experts=experts,
    )
    from quantdock.kernels.row_by_row import kernel_of

    kernel = kernel_of(dispatch_for("cuda", Policy(**policy)).select(problem))
    weights = []
    for _ in range(e):
        parts = [quantize_weight(torch.randn(s, h) / h**0.5, scheme.weight) for s in sizes]
        w2 = quantize_weight(torch.randn(h, i) / i**0.5, scheme.weight)
        if scheme.is_static:
            parts = [replace(part, input_scale=torch.rand(1) / 50 + 0.01) for part in parts]
            w2 = replace(w2, input_scale=torch.rand(1) / 50 + 0.01)
        weights.append((join(parts), w2))
    prepared = [kernel.prepare(*pair) for pair in weights]
    stacked = {n: torch.stack([one[n] for one in prepared]).cuda() for n in prepared[0]}
    return kernel, stacked, weights


def routed(tokens, e, k):
    """Return routing weights and ids of distinct experts; id e is another rank's expert."""
    return torch.rand(tokens, k), torch.rand(tokens, e + 1).argsort(dim=1)[:, :k]


def expected(text, weights, x, routing, ids, biases, activation, order):
    """Return f32 [T, H] by the oracle."""
    scheme, total = parse_scheme(text), torch.zeros(x.shape)
    for expert, (w13, w2) in enumerate(weights):
        b13, b2 = (None if b is None else b[expert].float() for b in biases)
        hidden = oracle.linear(scheme, w13, x.float(), b13)
        inner = ACTIVATIONS[activation](*split_w13(hidden, order))
        share = (routing * (ids == expert)).sum(dim=1, keepdim=True)
        total += share * oracle.linear(scheme, w2, inner, b2)
    return total


def limit(text):
    """Return how far results may be from the oracle's.

    The sums of w13 are rounded to 16 bits, so some of what w2 gets has a neighbouring code.
    """
    activation = parse_scheme(text).activation
    return 1.2e-2 if activation is None else 6e-2 if activation.element == "fp8_e4m3" else 1.5e-2


@pytest.mark.parametrize("text", SCHEMES)
def test_equals_the_oracle(cuda, text):
    kernel, stacked, weights = made(text)
    for tokens, k in ((1, 1), (1, 4), (3, 2), (40, 3), (700, 4)):
        x = torch.randn(tokens, 352).to(torch.bfloat16)
        routing, ids = routed(tokens, 6, k)
        right = expected(text, weights, x, routing, ids, (None, None), "silu", "gate_up")
        found = kernel.apply(stacked, x.cuda(), routing.cuda(), ids.cuda())
        assert found.dtype == x.dtype and found.shape == x.shape
        assert (found.cpu().float() - right).norm() <= limit(text) * right.norm()
        partial_sum = kernel.apply_partial(stacked, x.cuda(), routing.cuda(), ids.cuda())
        assert partial_sum.dtype == torch.float32
        assert (partial_sum.cpu() - right).norm() <= limit(text) * right.norm()


@pytest.mark.parametrize("order", ["gate_up", "interleaved", "up"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("text", [BLOCK, MXFP4])
def test_every_gate_and_order_with_biases(cuda, text, activation, order):
    kernel, stacked, weights = made(text, activation=activation, order=order)
    n = 224 if order == "up" else 448
    biases = [torch.randn(6, size).to(torch.bfloat16) for size in (n, 352)]
    both = stacked | {"w13_bias": biases[0].cuda(), "w2_bias": biases[1].cuda()}
    x = torch.randn(9, 352).to(torch.bfloat16)
    routing, ids = routed(9, 6, 2)
    right = expected(text, weights, x, routing, ids, biases, activation, order)
    found = kernel.apply(both, x.cuda(), routing.cuda(), ids.cuda()).cpu().float()
    assert (found - right).norm() <= limit(text) * right.norm()


@pytest.mark.parametrize("text", SCHEMES)
def test_few_pairs_are_computed_as_kernels_in_a_row_do(cuda, text, monkeypatch):
    """Tokens of few experts, some of which are of another rank, with changing values and ids."""
    from quantdock_cuda.expert_execution import ExpertExecution

    monkeypatch.setattr("quantdock_triton.tape.CALLS_BEFORE_GRAPH", 2)
    kernel, stacked, _ = made(text, e=32)
    both = stacked | {
        "w13_bias": torch.randn(32, 448, device="cuda", dtype=torch.bfloat16),
        "w2_bias": torch.randn(32, 352, device="cuda", dtype=torch.bfloat16),
    }
    given = []
    for number, tokens in enumerate((1, 1, 2, 2, 4, 4, 1, 2, 4) * 4):
        x = torch.randn(tokens, 352, device="cuda", dtype=torch.bfloat16)
        routing, ids = (t.cuda() for t in routed(tokens, 32, 2))
        if number % 3 == 1:
            ids[0] = torch.tensor([-1, 40])
        ids = ids.to(torch.int32) if number % 4 == 3 else ids
        routing = routing.to(torch.bfloat16) if number % 5 == 4 else routing
        given.append((both if number % 2 else stacked, x, routing, ids))
    found = [kernel.apply(*each) for each in given]
    partial_sums = [kernel.apply_partial(*each) for each in given]
    with torch.cuda.stream(torch.cuda.Stream()):
        elsewhere = [kernel.apply(*each) for each in given]
        torch.cuda.synchronize()
    monkeypatch.setattr(ExpertExecution, "again", lambda self, *others: None)
    again = [kernel.apply(*each) for each in given]
    # Tensor cores add up e4m3 with fewer bits, in a row for all of K; codes then have neighbours.
    most = 3e-2 if "1x*] x" in text or "*x*] x" in text else 5e-3
    none = property(lambda self: None, lambda self, pairs: None)
    monkeypatch.setattr(ExpertExecution, "_pairs", none, raising=False)
    for each, *results, partial_sum in zip(
        given, found, elsewhere, again, partial_sums, strict=True
    ):
        assert all(torch.equal(results[0], result) for result in results)
        right = kernel.apply(*each).float()
        assert (results[0].float() - right).norm() <= most * right.norm()
        assert (partial_sum - right).norm() <= 2 * most * right.norm()


@pytest.mark.parametrize("tokens, k", [(40, 3), (700, 4)])
def test_tiles_whose_warps_have_roles_equal_the_oracle(cuda, tokens, k):
    """Sizes that are whole blocks, so that on Hopper these tiles are taken."""
    kernel, stacked, weights = made(BLOCK, h=384, i=256)
    biases = [torch.randn(6, size).to(torch.bfloat16) for size in (512, 384)]
    both = stacked | {"w13_bias": biases[0].cuda(), "w2_bias": biases[1].cuda()}
    x = torch.randn(tokens, 384).to(torch.bfloat16)
    routing, ids = routed(tokens, 6, k)
    given = (x.cuda(), routing.cuda(), ids.cuda())
    for tensors, added in ((stacked, (None, None)), (both, biases)):
        right = expected(BLOCK, weights, x, routing, ids, added, "silu", "gate_up")
        for apply in (kernel.apply, kernel.apply_partial):
            found = apply(tensors, *given).cpu().float()
            assert (found - right).norm() <= limit(BLOCK) * right.norm()


@pytest.mark.parametrize("tokens, k", [(3, 2), (40, 3), (90, 4), (700, 4)])
@pytest.mark.parametrize("text", ["int4[1x128]", "uint4[1x64]:zero", MXFP4, NVFP4])
def test_packed_codes_in_wide_planes_equal_the_oracle(cuda, text, tokens, k):
    """On Hopper tiles whose warps have roles, of every height, some of them half empty."""
    kernel, stacked, weights = made(text, h=512, i=320 if text == NVFP4 else 256)
    n = 640 if text == NVFP4 else 512
    biases = [torch.randn(6, size).to(torch.bfloat16) for size in (n, 512)]
    both = stacked | {"w13_bias": biases[0].cuda(), "w2_bias": biases[1].cuda()}
    x = torch.randn(tokens, 512).to(torch.bfloat16)
    routing, ids = routed(tokens, 6, k)
    given = (x.cuda(), routing.cuda(), ids.cuda())
    right = expected(text, weights, x, routing, ids, biases, "silu", "gate_up")
    for apply in (kernel.apply, kernel.apply_partial):
        found = apply(both, *given)
        assert torch.equal(found, apply(both, *given))
        assert (found.cpu().float() - right).norm() <= limit(text) * right.norm()


@pytest.mark.parametrize("text", ["int4[1x32]", MXFP4])
def test_float16(cuda, text):
    """Codes of fp4 in blocks, which are multiplied in bfloat16 alone, go through the loop."""
    kernel, stacked, weights = made(text)
    for tokens in (2, 300):
        x = torch.randn(tokens, 352).to(torch.float16)
        routing, ids = routed(tokens, 6, 2)
        right = expected(text, weights, x, routing, ids, (None, None), "silu", "gate_up")
        found = kernel.apply(stacked, x.cuda(), routing.cuda(), ids.cuda())
        assert found.dtype == torch.float16
        assert (found.cpu().float() - right).norm() <= limit(text) * right.norm()


@pytest.mark.parametrize("text", SCHEMES)
def test_tokens_of_one_expert_of_none_and_no_tokens(cuda, text):
    kernel, stacked, weights = made(text)
    x = torch.randn(200, 352).to(torch.bfloat16)
    routing, ids = torch.rand(200, 1), torch.full((200, 1), 4)
    right = expected(text, weights, x, routing, ids, (None, None), "silu", "gate_up")
    found = kernel.apply(stacked, x.cuda(), routing.cuda(), ids.cuda()).cpu().float()
    assert (found - right).norm() <= limit(text) * right.norm()
    others = kernel.apply(stacked, x.cuda(), routing.cuda(), torch.full_like(ids, 6).cuda())
    assert not others.any()
    assert kernel.apply(stacked, x[:0].cuda(), routing[:0].cuda(), ids[:0].cuda()).shape == (0, 352)
    strided = torch.randn(3, 704, device="cuda", dtype=torch.bfloat16)
    given = (routing[:3].cuda(), ids[:3].cuda())
    for view in (strided[:, ::2], strided[:, :352]):
        found = kernel.apply(stacked, view, *given)
        assert torch.equal(found, kernel.apply(stacked, view.contiguous(), *given))


@pytest.mark.parametrize("text", SCHEMES)
def test_capture_after_warmup(cuda, text):
    kernel, stacked, _ = made(text)
    kernel.warmup((1, 20, 300))
    for tokens in (1, 20, 300):
        x = torch.randn(tokens, 352, device="cuda", dtype=torch.bfloat16)
        routing, ids = (t.cuda() for t in routed(tokens, 6, 2))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = kernel.apply(stacked, x, routing, ids)
        for _ in range(3):
            x.normal_()
            others = routed(tokens, 6, 2)
            routing.copy_(others[0])
            ids.copy_(others[1])
            graph.replay()
            assert torch.equal(found, kernel.apply(stacked, x, routing, ids))


def test_nobody_waits_for_the_gpu(cuda, nothing_waits):
    kernel, stacked, _ = made(BLOCK)
    x = torch.randn(5, 352, device="cuda", dtype=torch.bfloat16)
    routing, ids = (t.cuda() for t in routed(5, 6, 2))
    kernel.apply(stacked, x, routing, ids)
    with nothing_waits():
        kernel.apply(stacked, x, routing, ids)


@pytest.mark.parametrize("text", SCHEMES)
def test_compiles_to_one_graph(cuda, text):
    kernel, stacked, _ = made(text)
    run = torch.compile(
        lambda x, w, i: kernel.apply(stacked, x * 2, w, i) + 1, fullgraph=True, dynamic=True
    )
    for tokens in (2, 33):
        x = torch.randn(tokens, 352, device="cuda", dtype=torch.bfloat16)
        given = tuple(t.cuda() for t in routed(tokens, 6, 2))
        assert torch.equal(run(x, *given), kernel.apply(stacked, x * 2, *given) + 1)


@pytest.mark.parametrize("text", [BLOCK, MXFP4])
def test_gradients_come_from_the_loop(cuda, text):
    kernel, stacked, _ = made(text)
    x = torch.randn(5, 352, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    routing, ids = (t.cuda() for t in routed(5, 6, 2))
    kernel.apply(stacked, x, routing.clamp(max=1), ids % 6).sum().backward()
    assert isinstance(kernel._loop, ExpertLoop) and x.grad is not None
    assert torch.isfinite(x.grad).all() and x.grad.any()


def test_far_rows_of_a_large_stack(cuda):
    kernel, stacked, _ = made(BLOCK, e=3, h=4096, i=1024)
    # The stack has more than 2^31 codes; experts 0 to 2 lie at its end.
    number = (1 << 31) // (2048 * 4096) + 3
    far = {}
    for name, tensor in stacked.items():
        far[name] = torch.zeros((number, *tensor.shape[1:]), device="cuda").to(tensor.dtype)
        far[name].view(torch.uint8)[-3:] = tensor.view(torch.uint8)
    for tokens in (1, number):  # not sorted, and sorted, in both stacks
        x = torch.randn(tokens, 4096, device="cuda", dtype=torch.bfloat16)
        routing, ids = (t.cuda() for t in routed(tokens, 2, 2))
        run = partial(kernel.apply, x=x, topk_weights=routing)
        near, found = run(stacked, topk_ids=ids), run(far, topk_ids=ids + number - 3)
        assert torch.equal(near, found) or tokens > 1
        assert (near.float() - found.float()).norm() <= 5e-3 * near.float().norm() > 0


@pytest.mark.parametrize("text", SCHEMES)
def test_calls_that_are_made_again(cuda, text, monkeypatch):
    from quantdock_cuda.expert_execution import ExpertExecution

    kernel, stacked, _ = made(text)
    other = {name: torch.cat((t[-1:], t[:-1])) for name, t in stacked.items()}
    given = []
    for number in range(8):
        x = torch.randn(1 + 30 * (number % 2), 352, device="cuda", dtype=torch.bfloat16)
        tensors = other if number % 3 == 2 else stacked
        given.append((tensors, x, *(t.cuda() for t in routed(len(x), 6, 2))))
    found = [kernel.apply(*each) for each in given]
    with torch.cuda.stream(torch.cuda.Stream()):
        elsewhere = [kernel.apply(*each) for each in given]
        torch.cuda.synchronize()
    monkeypatch.setattr(ExpertExecution, "again", lambda self, *others: None)
    for each, *results in zip(given, found, elsewhere, strict=True):
        right = kernel.apply(*each)
        assert all(torch.equal(right, result) for result in results)


@pytest.mark.parametrize("text", SCHEMES)
def test_each_token_as_if_it_were_alone(cuda, text):
    kernel, stacked, _ = made(text, batch_invariant=True)
    x = torch.randn(300, 352, device="cuda", dtype=torch.bfloat16)
    routing, ids = (t.cuda() for t in routed(300, 6, 2))
    whole = kernel.apply(stacked, x, routing, ids)
    for rows in (slice(0, 1), slice(7, 8), slice(40, 80), slice(299, 300)):
        part = kernel.apply(stacked, x[rows], routing[rows], ids[rows])
        assert torch.equal(part, whole[rows])


class _Plain:
    def apply(self, tensors, x, bias):
        return torch.nn.functional.linear(x, tensors["weight"], bias)


def test_unquantized_experts_wait_for_nothing(cuda, nothing_waits):
    from quantdock.kernels.grouped_experts import GroupedExperts

    def gate(hidden):
        return ACTIVATIONS["silu"](*split_w13(hidden, "gate_up"))

    shapes = {"w13_weight": (448, 352), "w13_bias": (448,), "w2_weight": (352, 224)}
    options = {"device": "cuda", "dtype": torch.bfloat16}
    tensors = {name: torch.randn(6, *shape, **options) / 16 for name, shape in shapes.items()}
    kernel = GroupedExperts(gate=gate, num_experts=6)
    loop = ExpertLoop(w13=_Plain(), w2=_Plain(), gate=gate, num_experts=6)
    for tokens in (1, 300):
        x = torch.randn(tokens, 352, **options)
        routing, ids = (t.cuda() for t in routed(tokens, 6, 2))
        assert kernel.takes(tensors, x)
        right = loop.apply(tensors, x, routing, ids).float()
        kernel.apply(tensors, x, routing, ids)
        with nothing_waits():
            found = kernel.apply(tensors, x, routing, ids)
        assert (found.float() - right).norm() <= 1e-2 * right.norm()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            again = kernel.apply(tensors, x, routing, ids)
        graph.replay()
        assert torch.equal(again, found)
