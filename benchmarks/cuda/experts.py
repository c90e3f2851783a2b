"""Routed experts on a GPU, run whole, beside the floor, torch's grouped product and the loop.

Run on the GPU: ``python -m benchmarks.cuda.experts``. The floor is one read of the weights of the
experts that tokens were sent to, or the arithmetic at the rate of torch's product in bf16 (of fp8
for codes of fp8). Tokens are sent evenly at random; where they are few, calls take turns with
others' experts, so that weights come from memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm, silu

from benchmarks.cuda.gemm import show
from benchmarks.cuda.timing import START_US, fp8_tflops, read_tbs, time_us
from benchmarks.cuda.w4a16 import bf16_tflops
from quantdock import dispatch_for
from quantdock.kernel import Problem
from quantdock.kernels.row_by_row import kernel_of
from quantdock.numerics import join, quantize_weight
from quantdock.problem import ExpertProblem
from quantdock.schemes import parse_scheme

TOKENS = (1, 16, 64, 256, 1024, 4096)
SETS = 8  # of tokens whose experts differ, up to FEW tokens
FEW = 64
KEYS = ("tokens", "experts hit", "floor", "layer", "floor/layer", "TB/s", "TFLOP/s", "host", "loop",
        "loop/layer", "bf16", "bf16/layer", "error")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The experts of one layer, and the schemes that they are measured in."""

    name: str
    num_experts: int
    hidden: int
    intermediate: int
    top_k: int
    schemes: tuple[str, ...]
    activation: str = "silu"
    has_bias: bool = False


BLOCK = "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"
LAYERS = (
    Layer(
        name="Qwen3-30B-A3B",
        num_experts=128,
        hidden=2048,
        intermediate=768,
        top_k=8,
        schemes=(BLOCK, "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic", "int4[1x128]"),
    ),
    Layer(
        name="gpt-oss-20b",
        num_experts=32,
        hidden=2880,
        intermediate=2880,
        top_k=4,
        schemes=("fp4_e2m1[1x32]:e8m0:even",),
        activation="clamped_swiglu",
        has_bias=True,
    ),
    Layer(
        name="Mixtral 8x7B",
        num_experts=8,
        hidden=4096,
        intermediate=14336,
        top_k=2,
        schemes=("int4[1x128]",),
    ),
    Layer(
        name="DeepSeek-V3, 64 of its experts",
        num_experts=64,
        hidden=7168,
        intermediate=2048,
        top_k=8,
        schemes=(BLOCK,),
    ),
)
Calls = list[Callable[[], Tensor]]


def stacked(layer: Layer, text: str) -> tuple[Any, dict[str, Tensor], int]:
    """Return the kernel, its tensors, and the bytes of one expert's weights."""
    scheme, i, h = parse_scheme(text), layer.intermediate, layer.hidden
    experts = ExpertProblem(
        w2=scheme,
        num_experts=layer.num_experts,
        intermediate=i,
        activation=layer.activation,
        top_k=layer.top_k,
        w13_order="gate_up",
        has_bias=layer.has_bias,
    )
    problem = Problem(
        scheme=scheme, n=2 * i, k=h, shards=(i, i), dtype="bfloat16", kind="experts",
        experts=experts,
    )  # fmt: skip
    kernel = kernel_of(dispatch_for("cuda").select(problem))
    tensors: dict[str, Tensor] = {}
    for expert in range(layer.num_experts):
        w13 = join([quantize_weight(normal(i, h), scheme.weight) for _ in range(2)])
        one = kernel.prepare(w13, quantize_weight(normal(h, i), scheme.weight))
        for name, tensor in one.items():
            if name not in tensors:
                tensors[name] = tensor.new_empty((layer.num_experts, *tensor.shape))
            tensors[name][expert] = tensor
    num_bytes = sum(tensor.nbytes for tensor in tensors.values()) // layer.num_experts
    if layer.has_bias:
        tensors["w13_bias"] = torch.randn(layer.num_experts, 2 * i, **OPTIONS)
        tensors["w2_bias"] = torch.randn(layer.num_experts, h, **OPTIONS)
    return kernel, tensors, num_bytes


OPTIONS: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}


def normal(n: int, k: int) -> Tensor:
    """Return a weight [n, k] that keeps the size of what it multiplies."""
    return torch.randn(n, k, **OPTIONS) / k**0.5


def routed(layer: Layer, tokens: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return sets of x, routing weights and ids."""
    sets = []
    for _ in range(SETS if tokens <= FEW else 1):
        shape = (tokens, layer.num_experts)
        ids = torch.rand(shape, device="cuda").argsort(1)[:, : layer.top_k].contiguous()
        weights = torch.rand(tokens, layer.top_k, device="cuda").softmax(dim=1)
        sets.append((torch.randn(tokens, layer.hidden, **OPTIONS), weights, ids))
    return sets


class Grouped:
    """Unquantized weights and torch's grouped product, which waits for nothing either."""

    def __init__(self, layer: Layer) -> None:
        e, h, i = layer.num_experts, layer.hidden, layer.intermediate
        self.w13 = torch.randn(e, 2 * i, h, **OPTIONS) / h**0.5
        self.w2 = torch.randn(e, h, i, **OPTIONS) / i**0.5
        self.num_experts = e

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Return the weighted sum of each token's experts."""
        tokens, k = ids.shape
        sent, order = ids.flatten().sort(stable=True)
        bounds = torch.arange(1, self.num_experts + 1, device=ids.device)
        ends = torch.searchsorted(sent, bounds).to(torch.int32)
        hidden = grouped_mm(x[order // k], self.w13.transpose(1, 2), offs=ends)
        gate, up = hidden.chunk(2, dim=1)
        parts = grouped_mm(silu(gate) * up, self.w2.transpose(1, 2), offs=ends)
        parts = parts * weights.flatten()[order, None].to(parts.dtype)
        return torch.empty_like(parts).index_copy_(0, order, parts).view(tokens, k, -1).sum(dim=1)


def eager_us(calls: Calls) -> float:
    """Return the microseconds of one call as the host makes it, until the GPU is done."""
    for call in calls:
        call()
    times = []
    for call in calls * 4:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
    return median(times)


def error_of(kernel: Any, tensors: dict[str, Tensor], layer: Layer, given: Any, y: Tensor) -> float:
    """Return how far ``y`` is from f32 arithmetic with the same codes, for up to four tokens."""
    from quantdock.kernels.expert_activation import ACTIVATIONS

    x, weights, ids = given
    rows, right = range(0, len(x), -(-len(x) // 4)), []
    for row in rows:
        total = torch.zeros(layer.hidden, device="cuda")
        for weight, e in zip(weights[row], ids[row].tolist(), strict=True):
            own = {n: t[e] for n, t in tensors.items() if not n.endswith("bias")}
            w13, w2 = (made.dequantize().float() for made in kernel.restore(own))
            hidden = w13 @ x[row].float()
            if layer.has_bias:
                hidden += tensors["w13_bias"][e]
                total += weight * tensors["w2_bias"][e]
            total += weight * (w2 @ ACTIVATIONS[layer.activation](*hidden.chunk(2)))
        right.append(total)
    expected = torch.stack(right)
    return float((y[list(rows)].float() - expected).norm() / expected.norm())


def rows_of(
    layer: Layer, text: str, grouped: Grouped, tflops: float, tbs: float
) -> Iterator[list[Any]]:
    """Yield a row of the table for each number of tokens."""
    kernel, tensors, expert_bytes = stacked(layer, text)
    for tokens in TOKENS:
        sets = routed(layer, tokens)
        calls: Calls = [partial(kernel.apply, tensors, *given) for given in sets]
        error = error_of(kernel, tensors, layer, sets[0], calls[0]())
        us, host = time_us(calls), eager_us(calls)
        loop = eager_us([partial(kernel._loop.apply, tensors, *given) for given in sets])
        bf16 = time_us([partial(grouped, *given) for given in sets])
        hit = sum(len(ids.unique()) for _, _, ids in sets) / len(sets)
        num_bytes = hit * expert_bytes + 4 * tokens * layer.hidden
        work = 6 * tokens * layer.top_k * layer.hidden * layer.intermediate
        floor = max(work / tflops / 1e6, START_US + num_bytes / tbs / 1e6)
        yield [tokens, round(hit), floor, us, floor / us, num_bytes / us / 1e6, work / us / 1e6,
               host, loop, loop / us, bf16, bf16 / us, error]  # fmt: skip


def main() -> None:
    """Print a table for each layer and scheme."""
    rates = {True: fp8_tflops(), False: bf16_tflops()}
    tbs = read_tbs()
    print(f"fp8 {rates[True]:.0f}, bf16 {rates[False]:.0f} TFLOP/s, read {tbs:.2f} TB/s")
    for layer in LAYERS:
        grouped = Grouped(layer)
        for text in layer.schemes:
            print(f"\n**{layer.name}**, {text} (microseconds)\n\n| {' | '.join(KEYS)} |")
            print("|" + "---|" * len(KEYS))
            rate = rates[parse_scheme(text).activation is not None]
            for row in rows_of(layer, text, grouped, rate, tbs):
                cells = [show(value) for value in row[:-1]]
                print(f"| {' | '.join(cells)} | {row[-1]:.1e} |", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
