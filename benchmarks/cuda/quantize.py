"""Quantization of activations on a GPU beside a copy that moves as many bytes.

Run on the GPU: ``python -m benchmarks.cuda.quantize``. Gates and norms that write codes stand
beside such copies too, and beside torch's functions with the quantization after them. Kernels of
ours start while the one before ends, as in layers on Hopper; copies and torch's wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cuda.timing import time_us
from quantdock.formats import QuantSpec, parse_spec
from quantdock.kernels.plain_input import rms_norm
from quantdock.numerics import quantize
from quantdock_triton.normalize import Normalizer, normalizer
from quantdock_triton.quantize import Quantizer, quantizer

SHAPES = ((1, 7168), (128, 7168), (4096, 4096), (4096, 7168), (4096, 18432), (16384, 7168),
          (16384, 16384))  # fmt: skip
NORMED = ((1, 7168), (128, 7168), (4096, 4096), (4096, 7168), (4096, 8192), (4096, 18432),
          (16384, 7168))  # fmt: skip
SPECS = (
    "fp8_e4m3[*x*]",
    "fp8_e4m3[*x*]:dynamic",
    "fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[1x128]:dynamic",
    "fp8_e4m3[1x128]:ceil:dynamic",
    "int8[1x*]:dynamic",
)
EPS = 1e-6
TURNS = 4  # of four inputs in a graph, so that its start counts little
MOST_OFF = 1e-3  # share of codes of gates and norms that may be neighbours
# Bytes that move for each code: 16-bit values that are read or written, and the code itself.
PLAIN, GATED, ADDED = 3, 5, 7
Made = tuple[Tensor, ...]  # codes, scales ...


def scale_of(text: str) -> Tensor | None:
    """Return the static scale where the spec has one."""
    return None if parse_spec(text).dynamic else torch.tensor([0.01], device="cuda")


def facts_of(text: str) -> tuple[QuantSpec, int]:
    """Return a spec, and how many static scales it has."""
    spec = parse_spec(text)
    return spec, int(not spec.dynamic)


def inputs_us(run: Callable[..., object], inputs: Sequence[Any]) -> float:
    """Return the microseconds of a call, where inputs take turns."""
    return time_us([partial(run, x) for x in inputs] * TURNS)


def quantizing(text: str, k: int, silu: bool = False) -> Quantizer:
    """Return what quantizes rows of k values, as layers do it.

    One computed scale takes two launches here, and in layers of up to 256 rows one.
    """
    spec, num_static = facts_of(text)
    return quantizer(spec, k, num_static, True, silu, early=True)


def normalizing(text: str, k: int) -> Normalizer:
    """Return what quantizes norms of rows of k values."""
    spec, num_static = facts_of(text)
    return normalizer(spec, k, num_static, True, early=True)


def check(found: Made, value: Tensor, text: str, most_off: float) -> None:
    """Compare the codes with the definition's; of many rows with one scale each, the first."""
    spec = parse_spec(text)
    rows = value.shape[0] if spec.granularity == "tensor" else min(value.shape[0], 512)
    wanted = quantize(value[:rows], spec, scale=scale_of(text)).codes.view(torch.uint8)
    off = (found[0][:rows].view(torch.uint8) != wanted).float().mean()
    assert off <= most_off, f"{text}: {float(off):.1e} of the codes differ"


def row(copy: float, times: Sequence[tuple[float, float | None]]) -> str:
    """Return cells of a table: microseconds, their share of a copy, and of the functions apart."""
    cells = [
        f"{us:.1f} us ({copy / us:.2f})" + ("" if apart is None else f", apart {apart:.1f}")
        for us, apart in times
    ]
    return " | ".join((f"{copy:.1f} us", *cells))


def copy_us(num_bytes: int) -> float:
    """Return the microseconds of reading half of the bytes and writing half."""
    size = max(num_bytes // 4, 1)
    sources = [torch.randn(size, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    target = torch.empty_like(sources[0])
    return inputs_us(lambda source: torch.add(source, 1.0, out=target), sources)


def table(
    title: str,
    shapes: Sequence[tuple[int, int]],
    num_bytes: int,
    cell: Callable[[str, int, int], tuple[float, float | None]],
) -> None:
    """Print one table: a row for each shape and a column for each spec."""
    print(f"\n**{title}**\n\n| M x K | copy of as many bytes | {' | '.join(SPECS)} |")
    print("|" + "---|" * (len(SPECS) + 2))
    for m, k in shapes:
        times = [cell(text, m, k) for text in SPECS]
        print(f"| {m} x {k} | {row(copy_us(m * k * num_bytes), times)} |", flush=True)


def plain(text: str, m: int, k: int) -> tuple[float, float | None]:
    """Return the time of quantizing x."""
    xs = [torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    static = scale_of(text)
    run = quantizing(text, k)
    check(run(xs[0], static), xs[0], text, 0.0)
    return inputs_us(lambda x: run(x, static), xs), None


def gated(text: str, m: int, k: int) -> tuple[float, float | None]:
    """Return the time of a gate that writes codes, and of both steps apart."""
    xs = [torch.randn(m, 2 * k, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    static = scale_of(text)
    run, after = (quantizing(text, k, silu) for silu in (True, False))

    def gate(x: Tensor) -> Tensor:
        return F.silu(x[:, :k]) * x[:, k:]

    def apart(x: Tensor) -> Made:
        return after(gate(x), static)

    check(run(xs[0], static), gate(xs[0]), text, MOST_OFF)
    return inputs_us(lambda x: run(x, static), xs), inputs_us(apart, xs)


def normed(adds: bool, text: str, m: int, k: int) -> tuple[float, float | None]:
    """Return the time of a norm that writes codes, and of torch's with the quantization after."""
    xs = [torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(8 if adds else 4)]
    pairs = list(zip(xs[:4], xs[4:] if adds else [None] * 4, strict=True))
    weight, static = torch.randn(k, device="cuda", dtype=torch.bfloat16), scale_of(text)
    run, after = normalizing(text, k), quantizing(text, k)

    def together(pair: tuple[Tensor, Tensor | None]) -> Made:
        return run(pair[0], weight, EPS, static, pair[1])

    def apart(pair: tuple[Tensor, Tensor | None]) -> Made:
        total = pair[0] if pair[1] is None else pair[0] + pair[1]
        return after(F.rms_norm(total, (k,), weight, EPS), static)

    value = xs[0] + xs[4] if adds else xs[0]
    check(together(pairs[0]), rms_norm(value, weight, EPS), text, MOST_OFF)
    return inputs_us(together, pairs), inputs_us(apart, pairs)


def main() -> None:
    """Print the tables."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    table("x", SHAPES, PLAIN, plain)
    table("silu(gate) * up", SHAPES[:-1], GATED, gated)
    table("norm", NORMED, PLAIN, partial(normed, False))
    table("norm of x + residual, which is stored too", NORMED, ADDED, partial(normed, True))


if __name__ == "__main__":
    main()
