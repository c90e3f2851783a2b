"""On an NVIDIA GPU: calls that are made again, wherever tensors are and whatever stream runs."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from quantdock.kernel import Problem
from quantdock.numerics import quantize_weight
from quantdock.schemes import parse_scheme
from quantdock.testing.sample_weights import sample_weight

pytestmark = [
    pytest.mark.device,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]
SCHEMES = (
    "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]",
    "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
    "int8[1x*] x int8[1x*]:dynamic",
    "fp8_e4m3[128x128]",
    "uint4[1x128]:zero",
    "int4[1x128]",
    "uint4[1x128]:zero:act-order",
    "int4[1x128] + input multiplier",
    "fp4_e2m1[1x16]:e4m3:second[*x*]",
    "fp6_e2m3[1x32]:e8m0:even",
)
FEW = (1, 5, 33)  # rows
MANY = (300, 512)  # of which torch's library multiplies some
N, K = 512, 4096


@pytest.fixture(autouse=True)
def _graphs_at_once(monkeypatch):
    """Let calls of several kernels become graphs as soon as they are made again."""
    monkeypatch.setattr("quantdock_triton.tape.CALLS_BEFORE_GRAPH", 1)


def made(text, bias=False, n=N):
    """Return a layer and its tensors on the GPU."""
    from quantdock_cuda.packed_linear import CudaPackedLinear
    from quantdock_cuda.scaled_linear import CudaScaledLinear
    from quantdock_cuda.small_float_linear import CudaPackedFloatLinear, CudaSmallFloatLinear

    scheme, is_hopper = parse_scheme(text), torch.cuda.get_device_capability() == (9, 0)
    kinds = {"int4": CudaPackedLinear, "uint4": CudaPackedLinear,
             "fp4_e2m1": CudaPackedFloatLinear if is_hopper else CudaSmallFloatLinear,
             "fp6_e2m3": CudaSmallFloatLinear}  # fmt: skip
    kind = kinds.get(scheme.weight.element, CudaScaledLinear)
    problem = Problem(scheme=scheme, n=n, k=K, shards=(n,), dtype="bfloat16", has_bias=bias)
    values = torch.randn(n, K, device="cuda")
    if kind is CudaScaledLinear:
        weight = quantize_weight(values, scheme.weight)
    else:
        weight = sample_weight(values.cpu(), scheme)
    if scheme.is_static:
        weight = replace(weight, input_scale=torch.tensor([0.01], device="cuda"))
    layer = kind(problem)
    return layer, {name: t.cuda() for name, t in layer.prepare(weight).items()}


def inputs(m):
    return torch.randn(m, K, device="cuda", dtype=torch.bfloat16)


def at_length(layer, tensors, x, bias=None):
    """Return the result of a call that is not kept: x has columns between its columns."""
    wide = torch.empty(*x.shape, 2, device="cuda", dtype=x.dtype)
    return layer.apply(tensors, wide[..., 0].copy_(x), bias)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("text", SCHEMES)
def test_calls_made_again_are_right_wherever_tensors_are(cuda, text, bias):
    layer, tensors = made(text, bias)
    for m in (*FEW, *MANY):
        for turn in range(4):
            own = {name: t.clone() for name, t in tensors.items()} if turn == 2 else tensors
            added = torch.randn(N, device="cuda", dtype=torch.bfloat16) if bias else None
            x = inputs(m)
            with torch.no_grad():
                found = layer.apply(own, x, added)
            assert torch.equal(found, at_length(layer, own, x, added)), f"M={m}, call {turn}"
            kept = layer.apply(own, x.clone().requires_grad_(), added)
            assert torch.equal(found, kept.detach())


@pytest.mark.parametrize("text", SCHEMES)
@torch.no_grad()
def test_no_call_waits_for_the_gpu(cuda, text, nothing_waits):
    layer, tensors = made(text)
    layer.warmup((*FEW, *MANY))
    layer.apply(tensors, inputs(1), None)
    torch.cuda.synchronize()
    with nothing_waits():
        for m in (*FEW, *MANY):
            for _ in range(3):
                layer.apply(tensors, inputs(m), None)


@pytest.mark.parametrize("text", SCHEMES)
@torch.no_grad()
def test_unaligned_and_other_tensors(cuda, text):
    layer, tensors = made(text)
    flat = torch.randn(2 * K + 8, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        for start in (0, 1, 8):
            x = flat[start : start + K][None]
            assert torch.equal(layer.apply(tensors, x, None), at_length(layer, tensors, x))
    x = inputs(6).view(2, 3, K)
    for _ in range(3):
        found = layer.apply(tensors, x, None)
        assert found.shape == (2, 3, N) and found.is_contiguous()
        assert torch.equal(found.view(6, N), at_length(layer, tensors, x.view(6, K)))
    on_cpu = {name: t.cpu() for name, t in tensors.items()}
    with pytest.raises(Exception, match=r"cpu|device"):
        layer.apply(on_cpu, inputs(1), None)


@pytest.mark.parametrize("m", [3, 512])
@pytest.mark.parametrize("text", SCHEMES)
@torch.no_grad()
def test_streams_and_threads(cuda, text, m):
    """Each stream and thread has memory of its own for what is in between."""
    layer, tensors = made(text)
    xs = [inputs(m) for _ in range(8)]
    expected = [at_length(layer, tensors, x) for x in xs]
    torch.cuda.synchronize()
    wrong = []

    @torch.no_grad()
    def work(index):
        stream = torch.cuda.Stream() if index % 2 else torch.cuda.default_stream()
        with torch.cuda.stream(stream):
            for _ in range(50):
                if not torch.equal(layer.apply(tensors, xs[index], None), expected[index]):
                    wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("text", SCHEMES)
@torch.no_grad()
def test_graphs_of_calls_that_were_kept_before(cuda, text):
    layer, tensors = made(text)
    x = inputs(4)
    for _ in range(3):
        layer.apply(tensors, x, None)
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    found = []
    for graph in graphs:
        with torch.cuda.graph(graph):
            found.append(layer.apply(tensors, layer.apply(tensors, x, None)[:, :1] + x, None))
    for _ in range(3):
        x.normal_()
        for graph in graphs:
            graph.replay()
        within = at_length(layer, tensors, x)[:, :1] + x
        expected = at_length(layer, tensors, within)
        assert all(torch.equal(each, expected) for each in found)


@pytest.mark.parametrize("text", SCHEMES)
@torch.no_grad()
def test_calls_are_kept(cuda, text, monkeypatch):
    from quantdock_cuda.execution import Execution
    from quantdock_cuda.packed_execution import PackedExecution
    from quantdock_cuda.packed_float_execution import PackedFloatExecution
    from quantdock_cuda.small_float_execution import SmallFloatExecution

    layer, tensors = made(text, n=N + 64)
    # Weights that become 16 bits for many rows are multiplied by what no record holds.
    rows = 1 if text.startswith(("fp4", "fp6")) else 512
    for _ in range(3):
        expected = layer.apply(tensors, inputs(rows), None)
    for kind in (Execution, PackedExecution, SmallFloatExecution, PackedFloatExecution):
        monkeypatch.setattr(kind, "__call__", None)
    assert layer.apply(tensors, inputs(rows), None).shape == expected.shape


@pytest.mark.parametrize(
    "text", ["int8[1x*] x int8[1x*]:dynamic", "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"]
)
@torch.no_grad()
def test_launches_under_way_keep_their_addresses(cuda, text):
    """As many as the host is ahead of the GPU, of two layers that share a record and its graph."""
    from quantdock_triton import tape_graph
    from quantdock_triton.graph_driver import graph_driver

    if graph_driver() is None:
        pytest.skip("needs versions of Triton and of the driver with which graphs are made")
    before = set(tape_graph._GRAPHS)
    layers = [made(text, n=N + 128) for _ in range(2)]
    xs = [inputs(60) for _ in range(16)]
    expected = [[at_length(*layer, x) for x in xs] for layer in layers]
    for layer, tensors in layers:
        for _ in range(3):
            layer.apply(tensors, xs[0], None)
    assert len(set(tape_graph._GRAPHS) - before) == 1
    torch.cuda.synchronize()
    torch.cuda._sleep(100_000_000)
    found = [
        [layer.apply(tensors, x, None) for x in xs for layer, tensors in layers] for _ in range(8)
    ]
    for results in found:
        for index, result in enumerate(results):
            assert torch.equal(result, expected[index % 2][index // 2])
