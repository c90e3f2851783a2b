"""What it costs a layer of 4-bit weights that no row of its result depends on those beside it.

Run on the GPU: ``python -m benchmarks.cuda.batch_invariant``. Beside the time of each scheme are
that with ``batch_invariant=True`` ("alone") and their ratio. Products follow one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.cuda.gemm import show
from benchmarks.cuda.timing import num_copies, time_us
from quantdock import Policy, dispatch_for
from quantdock.kernel import Problem
from quantdock.kernels.row_by_row import kernel_of
from quantdock.numerics import quantize_weight
from quantdock.schemes import parse_scheme

SHAPES = ((4096, 4096), (2112, 7168), (14336, 4096), (28672, 8192))
ROWS = (1, 8, 16, 64, 128, 192, 256, 512, 1024)
SCHEMES = {
    "int4": "int4[1x128]",
    "mxfp4": "fp4_e2m1[1x32]:e8m0:even",
    "nvfp4": "fp4_e2m1[1x16]:e4m3:second[*x*]",
}
KEYS = ("M", *(f"{name}{what}" for name in SCHEMES for what in ("", " alone", " ratio")), "bf16")


class Layer:
    """A layer of one scheme, its weight so many times that none of them is in the cache."""

    def __init__(self, text: str, dense: Tensor) -> None:
        scheme, (n, k) = parse_scheme(text), dense.shape
        problem = Problem(scheme=scheme, n=n, k=k, shards=(n,), dtype="bfloat16")
        self._kernels = [
            kernel_of(dispatch_for("cuda", Policy(batch_invariant=alone)).select(problem))
            for alone in (False, True)
        ]
        made = self._kernels[0].prepare(quantize_weight(dense, scheme.weight))
        copies = num_copies(sum(tensor.nbytes for tensor in made.values()))
        self._copies = [{key: t.clone() for key, t in made.items()} for _ in range(copies)]

    def times(self, x: Tensor) -> list[float]:
        """Return microseconds without and with the promise, which take the same tensors."""
        return [
            time_us([partial(kernel.apply, tensors, x, None) for tensors in self._copies])
            for kernel in self._kernels
        ]


def rows_of(n: int, k: int) -> Iterator[list[Any]]:
    """Yield the row of the table for each number of rows of x."""
    dense = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    plain = [dense.clone() for _ in range(num_copies(2 * n * k))]
    layers = [Layer(text, dense) for text in SCHEMES.values()]
    for m in ROWS:
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        cells: list[Any] = [m]
        for layer in layers:
            usual, alone = layer.times(x)
            cells += [usual, alone, alone / usual]
        yield [*cells, time_us([partial(linear, x, weight) for weight in plain])]


def main() -> None:
    """Print a table for each shape."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    for n, k in SHAPES:
        print(f"\n**N={n}, K={k}** (microseconds)\n\n| {' | '.join(KEYS)} |")
        print("|" + "---|" * len(KEYS))
        for row in rows_of(n, k):
            print(f"| {' | '.join(map(show, row))} |", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
