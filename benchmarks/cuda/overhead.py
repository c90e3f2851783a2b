"""What one layer costs the host, beside an unquantized one: ``python -m benchmarks.cuda.overhead``.

One token and a layer so small that the GPU is done before the next call, so the host's time counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch
from torch.nn.functional import linear

from benchmarks.cuda.gemm import SCHEMES
from quantdock.kernel import Problem
from quantdock.numerics import quantize_weight
from quantdock.schemes import parse_scheme
from quantdock_cuda.scaled_linear import CudaScaledLinear

SIZE, CALLS = 512, 400
MORE = {"tensor, static": "fp8_e4m3[*x*] x fp8_e4m3[*x*]"}


def host_us(call: Callable[[], object]) -> float:
    """Return the microseconds of the host for one call."""
    times = []
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - start) * 1e6 / CALLS)
    return median(times)


def main() -> None:
    """Print microseconds a call."""
    dense = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(1, SIZE, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        base = host_us(lambda: linear(x, dense))
        print(f"F.linear: {base:.1f} us a call")
        for name, text in {**SCHEMES, **MORE}.items():
            scheme = parse_scheme(text)
            problem = Problem(scheme=scheme, n=SIZE, k=SIZE, shards=(SIZE,), dtype="bfloat16")
            layer, weight = CudaScaledLinear(problem), quantize_weight(dense, scheme.weight)
            if scheme.is_static:
                weight = replace(weight, input_scale=torch.tensor([0.01], device="cuda"))
            tensors = layer.prepare(weight)
            us = host_us(lambda t=tensors, run=layer.apply: run(t, x, None))
            print(f"{name}: {us:.1f} us, {us - base:+.1f}")


if __name__ == "__main__":
    main()
