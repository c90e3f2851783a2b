"""Layers of 4-bit and 8-bit weights on a GPU beside the floor and an unquantized layer.

Run on the GPU: ``python -m benchmarks.cuda.w4a16``. The floor is the arithmetic at the rate of the
largest bf16 product, or a fixed start and one read of all bytes. Products follow one another, or
each an addition that writes its x ("behind"), as in a model: what starts early gains less there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
import triton
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.cuda.gemm import mean, show
from benchmarks.cuda.timing import START_US, num_copies, read_tbs, time_us
from quantdock.kernel import Problem
from quantdock.numerics import CanonicalWeight, quantize_weight
from quantdock.schemes import parse_scheme
from quantdock_cuda.packed_linear import CudaPackedLinear

SHAPES = ((4096, 4096), (14336, 4096), (28672, 8192))
ROWS = (1, 16, 32, 64, 128, 256, 512, 1024, 4096)
SCHEMES = {"int4": "int4[1x128]", "uint4 with zeros": "uint4[1x128]:zero", "int8": "int8[1x128]"}
COUNTED = "int4"  # the scheme that the floor and the ratios are of
MANY = 512  # rows from which a product takes long enough to read its weight anyway
FEW_COPIES = 3
BEHIND = "behind"
KEYS = ("M", "floor", *SCHEMES, "bf16", f"{COUNTED}/floor", f"{COUNTED}/bf16", BEHIND, "error")


class Layers:
    """One layer shape in every scheme, each weight several times."""

    def __init__(self, n: int, k: int) -> None:
        self.n, self.k = n, k
        self.dense = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        self.plain = [self.dense.clone() for _ in range(num_copies(2 * n * k))]
        self.layers: dict[str, CudaPackedLinear] = {}
        self.tensors: dict[str, list[Mapping[str, Tensor]]] = {}
        for name, text in SCHEMES.items():
            scheme = parse_scheme(text)
            problem = Problem(scheme=scheme, n=n, k=k, shards=(n,), dtype="bfloat16")
            layer = CudaPackedLinear(problem)
            made = layer.prepare(as_files_have_it(quantize_weight(self.dense, scheme.weight)))
            copies = num_copies(sum(t.nbytes for t in made.values()))
            self.layers[name] = layer
            self.tensors[name] = [made] + [
                {key: t.clone() for key, t in made.items()} for _ in range(copies - 1)
            ]

    def times(self, m: int) -> dict[str, float]:
        """Return the microseconds of each scheme, and of the unquantized layer.

        BEHIND is a ratio: of additions and products, to additions and unquantized layers.
        """
        x = torch.randn(m, self.k, device="cuda", dtype=torch.bfloat16)
        turns = None if m < MANY else FEW_COPIES
        calls: dict[str, Sequence[Callable[[], object]]] = {
            name: [partial(layer.apply, t, x, None) for t in self.tensors[name][:turns]]
            for name, layer in self.layers.items()
        }
        calls["bf16"] = [partial(linear, x, w) for w in self.plain[:turns]]
        found = {name: time_us(each) for name, each in calls.items()}
        counted, plain = (time_us(behind(x, calls[name])) for name in (COUNTED, "bf16"))
        return {**found, BEHIND: counted / plain}

    def error(self, m: int) -> float:
        """Return |out - exact| / |exact| (Frobenius) of some rows, exact being f32 products."""
        x = torch.randn(m, self.k, device="cuda", dtype=torch.bfloat16)
        layer, tensors = self.layers[COUNTED], self.tensors[COUNTED][0]
        found = layer.apply(tensors, x, None)[:64].float()
        exact = x[:64].float() @ layer.restore(tensors).dequantize().t()
        return float((found - exact).norm() / exact.norm())

    def floor(self, m: int, tflops: float, tbs: float) -> float:
        """Return the microseconds that no kernel can be faster than."""
        weight = sum(t.nbytes for t in self.tensors[COUNTED][0].values())
        num_bytes = weight + 2 * m * (self.n + self.k)
        return max(2 * m * self.n * self.k / tflops / 1e6, START_US + num_bytes / tbs / 1e6)


def as_files_have_it(weight: CanonicalWeight) -> CanonicalWeight:
    """Return ``weight`` with scales that are numbers of float16, as those of files mostly are."""
    segments = (replace(s, scale=s.scale.to(torch.float16).float()) for s in weight.segments)
    return replace(weight, segments=tuple(segments))


def behind(x: Tensor, calls: Sequence[Callable[[], object]]) -> list[Callable[[], object]]:
    """Return calls before each of which an addition writes ``x``."""
    before = x.clone()

    def after(call: Callable[[], object]) -> object:
        torch.add(before, 0, out=x)
        return call()

    return [partial(after, call) for call in calls]


def bf16_tflops(size: int = 8192) -> float:
    """Return the rate of the library's bf16 product of [size, size] matrices."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / time_us([partial(torch.mm, a, b)] * 8) / 1e6


def rows_of(n: int, k: int, tflops: float, tbs: float) -> Iterator[list[float]]:
    """Yield the numbers of one layer shape, one row for each M."""
    layers = Layers(n, k)
    for m in ROWS:
        floor, times = layers.floor(m, tflops, tbs), layers.times(m)
        us = [times[name] for name in SCHEMES]
        counted, plain = times[COUNTED], times["bf16"]
        ratios = counted / floor, counted / plain, times[BEHIND]
        yield [m, floor, *us, plain, *ratios, layers.error(m)]


def main() -> None:
    """Print a table for each shape, then the means."""
    tflops, tbs = bf16_tflops(), read_tbs()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print(f"read {tbs:.2f} TB/s, bf16 {tflops:.0f} TFLOP/s")
    found = []
    for n, k in SHAPES:
        print(f"\n**N={n}, K={k}** (microseconds)\n\n| {' | '.join(KEYS)} |")
        print("|" + "---|" * len(KEYS))
        for row in rows_of(n, k, tflops, tbs):
            cells = [show(value) for value in row[:-1]]
            print(f"| {' | '.join(cells)} | {row[-1]:.1e} |", flush=True)
            found.append(dict(zip(KEYS, row, strict=True)))
    for least, most in ((1, 16), (32, 128), (256, 1024), (4096, 4096)):
        some = [row for row in found if least <= row["M"] <= most]
        to_floor, to_bf16 = (mean([r[f"{COUNTED}/{of}"] for r in some]) for of in ("floor", "bf16"))
        print(f"M {least} to {most}: {to_floor:.2f} of the floor, {to_bf16:.2f} of bf16 "
              "(geometric means)")  # fmt: skip


if __name__ == "__main__":
    main()
