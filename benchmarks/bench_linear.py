"""Quantized linear layers in plain torch, as ratios to an unquantized float32 layer.

Run it with ``python -m benchmarks.bench_linear``. It uses one thread. A ratio of 2 means twice the
time of ``F.linear`` in float32 for the same shape.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import date

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.harness import (
    Candidate,
    Timing,
    compare,
    copies_of,
    machine,
    read_bandwidth,
)
from quantdock.formats import parse_spec
from quantdock.kernel import Problem
from quantdock.kernels import oracle
from quantdock.kernels.int4_pack import Int4Pack
from quantdock.kernels.int8_mm import Int8Mm
from quantdock.kernels.int8_pack import Int8Pack
from quantdock.kernels.scaled_linear import ScaledLinear
from quantdock.numerics import quantize
from quantdock.schemes import parse_scheme
from quantdock.testing.sample_weights import sample_weight

SHAPES = ((2048, 2048), (576, 1536), (1536, 576))  # N, K; the last two are SmolLM2-135M's
TOKENS = (1, 4, 16, 64, 256)
SCHEMES = (
    "fp8_e4m3[*x*]",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]",
    "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
    "fp8_e4m3[1x32]:e8m0:ceil x fp8_e4m3[1x32]:e8m0:ceil:dynamic",
    "int8[1x*]",
    "int8[1x*] x int8[1x*]:dynamic",
    "int8[1x*] x int8[1x*]:zero:dynamic",
    "uint8[1x128]:zero",
    "int4[1x128]",
    "uint4[1x128]:zero",
    "int4[1x128]:act-order",
    "int4[1x128] x int8[1x*]:dynamic",
    "int3[1x128]",
    "int2[1x128]",
)
# With bfloat16 x, as their models run.
OTHERS: tuple[tuple[str, type[ScaledLinear], str], ...] = (
    ("int8_mm", Int8Mm, "int8[1x*] x int8[1x*]:dynamic"),
    ("int8_pack", Int8Pack, "int8[1x*]"),
    ("int4_pack", Int4Pack, "int4[1x128]"),
    ("int4_pack", Int4Pack, "uint4[1x128]:zero"),
    ("int4_pack", Int4Pack, "int4[1x128]:act-order"),
)
EACH_CALL = ("fp8_e4m3[1x*]", "int8[1x*]", "uint4[1x128]:zero")  # decoded whole, then F.linear
ROW_WISE, TENSOR_WISE = SCHEMES[2], SCHEMES[1]
BASELINE = "F.linear float32"


class Weights:
    """Copies of one layer's weight, plain and in every scheme."""

    def __init__(self, n: int, k: int) -> None:
        self.n, self.k = n, k
        self.copies = copies_of(4 * n * k)
        generator = torch.Generator().manual_seed(n)
        self.plain = [torch.randn(n, k, generator=generator) for _ in range(self.copies)]
        self.half = [w.bfloat16() for w in self.plain]
        self._prepared_others: dict[tuple[str, str], list[dict[str, Tensor]]] = {}
        self.quantized = {
            scheme: [sample_weight(w, parse_scheme(scheme)) for w in self.plain]
            for scheme in dict.fromkeys((*SCHEMES, *EACH_CALL))
        }
        self.prepared = {
            scheme: [self.kernel(scheme).prepare(w) for w in self.quantized[scheme]]
            for scheme in SCHEMES
        }

    def kernel(self, scheme: str, kind: type[ScaledLinear] = ScaledLinear) -> ScaledLinear:
        """Return the kernel that runs ``scheme``."""
        return kind(Problem(scheme=parse_scheme(scheme), n=self.n, k=self.k))

    def candidates(self, x: Tensor) -> list[Candidate]:
        """Return everything to compare for the activations ``x`` [M, K], float32."""
        plain = x.double() @ self.plain[0].double().T
        half = x.bfloat16()
        return [
            Candidate(
                name=BASELINE, run=lambda i: F.linear(x, self._at(self.plain, i)), expected=plain
            ),
            Candidate(
                name="F.linear bfloat16",
                run=lambda i: F.linear(half, self._at(self.half, i)),
                expected=plain,
            ),
            *(self._reference(scheme, x) for scheme in SCHEMES),
            *(self._other(name, kind, scheme, half) for name, kind, scheme in OTHERS),
            *(self._decoded_each_call(scheme, x) for scheme in EACH_CALL),
            *self._torch_only(x, half),
        ]

    def _at(self, weights: Sequence[Tensor], number: int) -> Tensor:
        return weights[number % self.copies]

    def _expected(self, scheme: str, x: Tensor) -> Tensor:
        return oracle.linear(parse_scheme(scheme), self.quantized[scheme][0], x)

    def _reference(self, scheme: str, x: Tensor) -> Candidate:
        kernel, prepared = self.kernel(scheme), self.prepared[scheme]
        return Candidate(
            name=f"reference {scheme}",
            run=lambda i: kernel.apply(prepared[i % self.copies], x, None),
            expected=self._expected(scheme, x),
        )

    def _other(self, name: str, kind: type[ScaledLinear], scheme: str, half: Tensor) -> Candidate:
        kernel = self.kernel(scheme, kind)
        key = (name, scheme)
        if key not in self._prepared_others:
            self._prepared_others[key] = [kernel.prepare(w) for w in self.quantized[scheme]]
        prepared = self._prepared_others[key]
        return Candidate(
            name=f"{name} {scheme}, bfloat16 x",
            run=lambda i: kernel.apply(prepared[i % self.copies], half, None),
            expected=self._expected(scheme, half),
        )

    def _decoded_each_call(self, scheme: str, x: Tensor) -> Candidate:
        """Return what people write first: the whole weight as float32, at every call."""
        weights = self.quantized[scheme]
        return Candidate(
            is_peer=True,
            name=f"{scheme} dequantized to float32 at each call, then F.linear",
            run=lambda i: F.linear(x, weights[i % self.copies].dequantize()),
            expected=self._expected(scheme, x),
        )

    def _torch_only(self, x: Tensor, half: Tensor) -> list[Candidate]:
        """Return what torch offers without us; activations are quantized beforehand, for free."""
        rows = quantize(x, parse_spec("fp8_e4m3[1x*]:dynamic"))
        static = self.quantized[TENSOR_WISE][0].input_scale
        whole = quantize(x, parse_spec("fp8_e4m3[*x*]"), scale=static)

        def scaled_mm(scheme: str, codes: Tensor, scale: Tensor, number: int) -> Tensor:
            tensors = self.prepared[scheme][number % self.copies]
            by = tensors["weight_scale"]
            by = by.T if by.numel() > 1 else by.reshape(())
            return torch._scaled_mm(
                codes, tensors["weight"].T, scale, by.contiguous(), out_dtype=torch.bfloat16
            )

        naive, tensors = SCHEMES[0], self.prepared[SCHEMES[0]]
        return [
            Candidate(
                is_peer=True,
                name="torch._scaled_mm, row-wise",
                run=lambda i: scaled_mm(ROW_WISE, rows.codes, rows.scale, i),
                expected=self._expected(ROW_WISE, x),
            ),
            Candidate(
                is_peer=True,
                name="torch._scaled_mm, tensor-wise",
                run=lambda i: scaled_mm(TENSOR_WISE, whole.codes, whole.scale.reshape(()), i),
                expected=self._expected(TENSOR_WISE, x),
            ),
            Candidate(
                is_peer=True,
                name="weight.to(bfloat16), then F.linear",
                run=lambda i: (
                    F.linear(half, tensors[i % self.copies]["weight"].to(torch.bfloat16))
                    * tensors[i % self.copies]["weight_scale"]
                ),
                expected=self._expected(naive, half),
            ),
        ]


def table_of(n: int, k: int, bandwidth: float) -> Table:
    """Return the ratios of one shape: a row for each candidate, a column for each M."""
    weights = Weights(n, k)
    timings: list[dict[str, Timing]] = []
    for m in TOKENS:
        x = torch.randn(m, k, generator=torch.Generator().manual_seed(m))
        timings.append(compare(weights.candidates(x)))
    baseline = [found[BASELINE].smallest for found in timings]
    table = Table("ratio to float32 F.linear", *(f"M={m}" for m in TOKENS), title=f"N={n}, K={k}")
    table.add_row(f"{BASELINE}, us", *(f"{seconds * 1e6:.0f}" for seconds in baseline))
    table.add_row(
        "reading the weight once in 8 bits",
        *(f"{n * k / bandwidth / seconds:.2f}" for seconds in baseline),
    )
    for name in timings[0]:
        if name != BASELINE and all(name in found for found in timings):
            ratios = [t[name].smallest / b for t, b in zip(timings, baseline, strict=True)]
            table.add_row(name, *(f"{ratio:.2f}" for ratio in ratios))
    noise = [found[BASELINE].median / found[BASELINE].smallest for found in timings]
    table.add_row("median / smallest of the baseline", *(f"{ratio:.2f}" for ratio in noise))
    return table


def main() -> None:
    """Print a table for each shape; QUANTDOCK_BENCH_THREADS sets the threads (1)."""
    console = Console(width=120, emoji=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(int(os.environ.get("QUANTDOCK_BENCH_THREADS", "1")))
    try:
        with torch.inference_mode():
            bandwidth = read_bandwidth()
            console.print(f"{date.today()}, {machine()}, reads {bandwidth / 1e9:.1f} GB/s")
            for n, k in SHAPES:
                console.print(table_of(n, k, bandwidth))
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
