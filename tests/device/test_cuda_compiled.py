"""On an NVIDIA GPU: small models that torch.compile runs as CUDA graphs, in memory of its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from quantdock import Policy, dispatch_for
from quantdock.kernel import Problem
from quantdock.kernels.row_by_row import kernel_of
from quantdock.numerics import join
from quantdock.problem import ExpertProblem
from quantdock.schemes import parse_scheme
from quantdock.testing.sample_weights import sample_weight

pytestmark = [
    pytest.mark.device,
    # torch 2.11's own use of torch.jit, when it compiles.
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*TensorFloat32 tensor cores.*:UserWarning"),
    # Of a first graph of torch's own, which only keeps the memory of those after it.
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),
]
BLOCK = "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"
LINEAR = (
    BLOCK,
    "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]",
    "int8[1x*] x int8[1x*]:dynamic",
    "fp8_e4m3[1x*]",
    "int4[1x128]",
    "uint4[1x128]:zero:act-order",
    "fp4_e2m1[1x32]:e8m0:even",
    "fp4_e2m1[1x16]:e4m3:second[*x*]",
)
ROWS = (1, 16, 300)
TURNS = 5  # the first only warms up, the second is captured, the others are replayed
HIDDEN, MIDDLE, NUM_EXPERTS, TOP_K = 512, 1024, 8, 2


class Layer(nn.Module):
    """A kernel whose tensors are buffers, as those of a model's layer stay where they are."""

    def __init__(self, problem, *matrices):
        super().__init__()
        self.kernel = kernel_of(dispatch_for("cuda", Policy()).select(problem))
        each = [self.kernel.prepare(*matrix) for matrix in matrices]
        self.names = tuple(each[0])
        for name in self.names:
            parts = [tensors[name] for tensors in each]
            whole = torch.stack(parts) if problem.experts else parts[0]
            self.register_buffer(name, whole.cuda())

    def forward(self, x, *others):
        tensors = {name: getattr(self, name) for name in self.names}
        return self.kernel.apply(tensors, x, *others)


def linear(text, n, k):
    scheme = parse_scheme(text)
    problem = Problem(scheme=scheme, n=n, k=k, shards=(n,), dtype="bfloat16")
    return Layer(problem, [sample_weight(torch.randn(n, k), scheme)])


class Model(nn.Module):
    """Two layers and what torch computes around them, each result rounded once as without it."""

    def __init__(self, text):
        super().__init__()
        self.up, self.down = linear(text, MIDDLE, HIDDEN), linear(text, HIDDEN, MIDDLE)

    def forward(self, x):
        return self.down(torch.relu(self.up(x * 2, None)), None) + x


class Routed(nn.Module):
    """A layer's experts behind a linear layer, and what torch computes around them."""

    def __init__(self, text):
        super().__init__()
        scheme, shards = parse_scheme(text), (MIDDLE, MIDDLE)
        experts = ExpertProblem(
            w2=scheme,
            num_experts=NUM_EXPERTS,
            intermediate=MIDDLE,
            activation="silu",
            w13_order="gate_up",
            top_k=TOP_K,
        )
        problem = Problem(
            scheme=scheme,
            n=sum(shards),
            k=HIDDEN,
            shards=shards,
            dtype="bfloat16",
            kind="experts",
            experts=experts,
        )
        self.first = linear(text, HIDDEN, HIDDEN)
        self.experts = Layer(problem, *([*expert(scheme, shards)] for _ in range(NUM_EXPERTS)))

    def forward(self, x, weights, ids):
        return self.experts(torch.relu(self.first(x, None)), weights, ids) + x


def expert(scheme, shards):
    """Yield w13 and w2 of one expert."""
    parts = [torch.randn(size, HIDDEN) / HIDDEN**0.5 for size in shards]
    yield join([sample_weight(part, scheme) for part in parts])
    yield sample_weight(torch.randn(HIDDEN, MIDDLE) / MIDDLE**0.5, scheme)


@pytest.fixture
def fresh(cuda, monkeypatch):
    """Let the test's first call be the first of a process: what it keeps is not there yet."""
    from quantdock_cuda.device import counters

    for name in ("_all", "_of_stream", "_addresses"):
        monkeypatch.setattr(counters, name, {})
    monkeypatch.setattr(torch._inductor.config, "compile_threads", 1)


def assert_compiles(model, inputs_of):
    """Assert that ``model`` compiled as CUDA graphs equals itself, whatever was called between.

    Args:
        inputs_of: rows to the inputs of one call.
    """
    from torch._dynamo.utils import counters
    from torch._inductor.cudagraph_trees import get_manager

    counters.clear()
    run = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    calls = [inputs_of(m) for m in ROWS for _ in range(TURNS)]
    found = []
    for given in calls + calls[::2]:
        torch.compiler.cudagraph_mark_step_begin()
        found.append(run(*given).clone())
    for given, result in zip(calls + calls[::2], found, strict=True):
        assert torch.equal(result, model(*given))
    assert not counters["inductor"]["cudagraph_skips"]
    manager = get_manager(0, create_if_none_exists=False)
    assert manager is not None and sum(map(len, manager.roots.values())) >= len(ROWS)


@pytest.mark.parametrize("text", LINEAR)
@torch.no_grad()
def test_linear_layers(fresh, text):
    def inputs(m):
        return (torch.randn(m, HIDDEN, device="cuda", dtype=torch.bfloat16),)

    assert_compiles(Model(text), inputs)


@pytest.mark.parametrize("text", [BLOCK, "int4[1x128]"])
@torch.no_grad()
def test_experts(fresh, text):
    def inputs(m):
        x = torch.randn(m, HIDDEN, device="cuda", dtype=torch.bfloat16)
        ids = torch.rand(m, NUM_EXPERTS, device="cuda").argsort(dim=1)[:, :TOP_K].contiguous()
        return x, torch.rand(m, TOP_K, device="cuda"), ids

    assert_compiles(Routed(text), inputs)


@torch.no_grad()
def test_graphs_that_follow_each_other_in_other_orders(fresh):
    """Each graph is captured for the memory that those before it in a step have left."""
    first, second = (Model(text) for text in (BLOCK, "int4[1x128]"))
    compiled = [torch.compile(model, mode="reduce-overhead") for model in (first, second)]
    for turn in range(6):
        x = torch.randn(16, HIDDEN, device="cuda", dtype=torch.bfloat16)
        order = (0, 1) if turn % 2 else (1, 0, 1)
        torch.compiler.cudagraph_mark_step_begin()
        found = right = x
        for place in order:
            found = compiled[place](found)
        for place in order:
            right = (first, second)[place](right)
        assert torch.equal(found, right)
