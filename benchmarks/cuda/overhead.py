"""What one layer costs the host, beside an unquantized one: ``python -m benchmarks.cuda.overhead``.

A layer so small that the GPU is done before the next call, so the host's time counts. Both kinds
take turns, so that a busy machine slows them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import quantdock
from benchmarks.cuda.experts import Layer, routed, stacked
from benchmarks.cuda.small_floats import kernel_of
from quantdock.kernel import Policy, Problem
from quantdock.layers import LinearBase
from quantdock.schemes import parse_scheme
from quantdock.testing.sample_weights import sample_weight
from quantdock_cuda.packed_linear import CudaPackedLinear
from quantdock_cuda.scaled_linear import CudaScaledLinear

SIZE, CALLS, TURNS = 512, 300, 15
ROWS = (1, 16, 64)  # of x
SCHEMES = {
    "fp8, per token": "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "fp8, blocks": "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
    "fp8, tensor": "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic",
    "fp8, tensor, static": "fp8_e4m3[*x*] x fp8_e4m3[*x*]",
    "int8, per token": "int8[1x*] x int8[1x*]:dynamic",
    "w8a16": "fp8_e4m3[1x*]",
    "w4a16": "int4[1x128]",
    "w4a16, act-order": "uint4[1x128]:zero:act-order",
    "w4a16, input multiplier": "int4[1x128] + input multiplier",
    "nvfp4, weights alone": "fp4_e2m1[1x16]:e4m3:second[*x*]",
    "mxfp4, weights alone": "fp4_e2m1[1x32]:e8m0:even",
}
# Kernels of elements that are not multiplied as they are stored.
KINDS: dict[str, Callable[[Problem], Any]] = {
    "int4": CudaPackedLinear,
    "uint4": CudaPackedLinear,
    "fp4_e2m1": kernel_of,
}
EXPERTS = {"experts, fp8 in blocks": SCHEMES["fp8, blocks"], "experts, w4a16": SCHEMES["w4a16"]}
METHODS = ("fp8_per_channel", "fp8_per_block", "fp8_per_tensor")
Call = Callable[[], object]
OfRows = Callable[[Tensor], object]


def host_us(plain: Call, quantized: Call) -> tuple[float, float]:
    """Return the microseconds of the host for one call of each."""
    times: dict[Call, list[float]] = {plain: [], quantized: []}
    for _ in range(TURNS):
        for call, found in times.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            found.append((time.perf_counter() - start) * 1e6 / CALLS)
    return median(times[plain]), median(times[quantized])


def kernel_call(text: str, dense: Tensor) -> OfRows:
    """Return what calls the kernel of one scheme."""
    scheme = parse_scheme(text)
    problem = Problem(scheme=scheme, n=SIZE, k=SIZE, shards=(SIZE,), dtype="bfloat16")
    kind = KINDS.get(scheme.weight.element, CudaScaledLinear)
    layer = kind(problem)
    made = layer.prepare(sample_weight(dense.cpu(), scheme))
    tensors = {name: tensor.cuda() for name, tensor in made.items()}
    return lambda x: layer.apply(tensors, x, None)


def module(method: str, dense: Tensor) -> nn.Module:
    """Return a layer as models have it."""
    config = quantdock.get_quantization_config(method, "cuda").online()
    config.bind(quantdock.dispatch_for("cuda", Policy()))
    layer = LinearBase(
        SIZE, SIZE, bias=False, params_dtype=dense.dtype, quant_config=config, prefix="layer"
    )
    weight = layer.get_parameter("weight")
    weight.weight_loader(weight, dense, 0)
    layer.quant_method.process_weights_after_loading(layer)
    return layer.eval()


def experts_call(text: str) -> OfRows:
    """Return what calls the experts of a small layer, two for each token."""
    layer = Layer(
        name="small", num_experts=16, hidden=SIZE, intermediate=256, top_k=2, schemes=(text,)
    )
    kernel, tensors, _ = stacked(layer, text)
    sent = {m: routed(layer, m)[0][1:] for m in ROWS}
    return lambda x: kernel.apply(tensors, x, *sent[x.shape[0]])


def calls(dense: Tensor) -> Iterator[tuple[str, OfRows, OfRows]]:
    """Yield names, and what is called with x without and with quantization."""
    for name, text in SCHEMES.items():
        yield name, lambda x: linear(x, dense), kernel_call(text, dense)
    for name, text in EXPERTS.items():
        yield name, lambda x: linear(x, dense), experts_call(text)
    plain = nn.Linear(SIZE, SIZE, bias=False, device="cuda", dtype=dense.dtype).eval()
    for method in METHODS:
        yield f"module: {method}", plain, module(method, dense)


def main() -> None:
    """Print microseconds a call with quantization, and how many more than without."""
    dense = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    inputs = [torch.randn(m, SIZE, device="cuda", dtype=torch.bfloat16) for m in ROWS]
    print(f"| rows of x | {' | '.join(map(str, ROWS))} |\n|{'---|' * (len(ROWS) + 1)}")
    with torch.inference_mode():
        for name, plain, quantized in calls(dense):
            times = [host_us(partial(plain, x), partial(quantized, x)) for x in inputs]
            cells = (f"{after:.1f} ({after - before:+.1f})" for before, after in times)
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
