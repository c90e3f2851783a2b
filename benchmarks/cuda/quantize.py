"""Quantization of activations on a GPU beside a copy that moves as many bytes.

Run on the GPU: ``python -m benchmarks.cuda.quantize``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.cuda.timing import time_us
from quantdock.formats import parse_spec
from quantdock.numerics import quantize
from quantdock_triton.quantize import quantizer

SHAPES = ((1, 7168), (128, 7168), (4096, 4096), (4096, 7168), (4096, 18432), (16384, 7168),
          (16384, 16384))  # fmt: skip
SPECS = (
    "fp8_e4m3[*x*]",
    "fp8_e4m3[*x*]:dynamic",
    "fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[1x128]:dynamic",
    "fp8_e4m3[1x128]:ceil:dynamic",
    "int8[1x*]:dynamic",
)


def one(text: str, xs: list[Any]) -> float:
    """Return the microseconds of quantizing; the codes are compared with the definition's."""
    spec, k = parse_spec(text), xs[0].shape[1]
    static = None if spec.dynamic else torch.tensor([0.01], device="cuda")
    run = quantizer(spec, k, 0 if static is None else 1, True)
    rows = min(xs[0].shape[0], 512) if spec.granularity != "tensor" else xs[0].shape[0]
    expected = quantize(xs[0][:rows], spec, scale=static).codes.view(torch.uint8)
    assert torch.equal(run(xs[0], static)[0][:rows].view(torch.uint8), expected), text
    return time_us([lambda x=x: run(x, static) for x in xs])


def main() -> None:
    """Print a table."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"\n| M x K | copy of as many bytes | {' | '.join(SPECS)} |")
    print("|" + "---|" * (len(SPECS) + 2))
    for m, k in SHAPES:
        xs = [torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
        size = max(m * k * 3 // 4, 1)  # two bytes are read and one is written for each value
        sources = [torch.randn(size, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
        target = torch.empty_like(sources[0])
        copy = time_us([partial(torch.add, s, 1.0, out=target) for s in sources])
        cells = [f"{us:.1f} us ({copy / us:.2f})" for us in (one(text, xs) for text in SPECS)]
        print(f"| {m} x {k} | {copy:.1f} us, {m * k * 3 / copy / 1e6:.2f} TB/s | "
              f"{' | '.join(cells)} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
