"""The linear layers of fp4 and fp6 weights (MX, NVFP4) and activations as given, as one operator.

Codes lie in 16-bit words and scales stay bytes (``small_float_tensors``). Going back gives every
bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from quantdock.formats import QuantSpec
from quantdock.kernel import Problem
from quantdock.kernels.input_gradient import input_gradient
from quantdock.kernels.layout import from_grid
from quantdock.kernels.ops import define
from quantdock.kernels.scaled_linear import NAMES, result_shape, scaled_linear
from quantdock.numerics import CanonicalWeight, join, quantize_weight, torch_dtype
from quantdock.schemes import parse_scheme
from quantdock_cuda.packed_float_execution import execution as blocks_execution
from quantdock_cuda.small_float_execution import execution
from quantdock_cuda.small_float_tensors import (
    SCALE,
    SECOND,
    WORDS,
    in_blocks,
    in_runs,
    num_rows,
    plain_grid,
)


class CudaSmallFloatLinear:
    """Runs fp4 and fp6 weights in groups, with scales of one or two levels."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._scheme = str(problem.scheme)
        self._spec = problem.scheme.weight
        self._sizes = list(problem.shards)

    def prepare(self, weight: CanonicalWeight) -> dict[str, Tensor]:
        """Return ``weight`` as named tensors; see ``small_float_tensors``."""
        return in_runs(weight, self._spec)

    def restore(self, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the weight that ``prepare`` got, bit for bit."""
        stored = tensors[WORDS], tensors[SCALE], tensors.get(SECOND)
        grid = plain_grid(*stored, self._spec, self._k, self._sizes)
        return CanonicalWeight(segments=from_grid(grid))

    def apply(self, tensors: Mapping[str, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``x @ weight.T + bias``; x is [..., K] of any strides, the result in its dtype."""
        return self._run(tensors, x, bias, in_f32=False)

    def apply_partial(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return ``x @ weight.T`` in f32, not rounded: a sum over ranks is rounded once."""
        return self._run(tensors, x, None, in_f32=True)

    def warmup(self, m_buckets: Sequence[int]) -> None:
        """Compile for numbers of rows like these, and let the library allocate what it keeps.

        Afterwards the layer can be captured into a CUDA graph.
        """
        problem = self.problem
        if problem.n is None or problem.k is None:
            return
        device, dtype = torch.device("cuda"), torch_dtype(problem.dtype or "bfloat16")
        shards = [
            torch.zeros((n, problem.k), device=device) for n in problem.shards or (problem.n,)
        ]
        tensors = self.prepare(join([quantize_weight(shard, self._spec) for shard in shards]))
        bias = torch.zeros(problem.n, dtype=dtype, device=device) if problem.has_bias else None
        for m in m_buckets:
            self.apply(tensors, torch.zeros((m, problem.k), dtype=dtype, device=device), bias)

    def _run(
        self, tensors: Mapping[str, Tensor], x: Tensor, bias: Tensor | None, *, in_f32: bool
    ) -> Tensor:
        return CUDA_SMALL_FLOAT_LINEAR(
            x,
            tensors[WORDS],
            tensors[SCALE],
            tensors.get(SECOND),
            bias,
            self._scheme,
            self._k,
            self._sizes,
            in_f32,
            self.problem.batch_invariant,
        )

    @property
    def _k(self) -> int:
        assert self.problem.k is not None, "whoever makes a layer knows its size"
        return self.problem.k


class CudaPackedFloatLinear(CudaSmallFloatLinear):
    """Runs fp4 weights by the kernel of packed codes, on GPUs with asynchronous tensor cores."""

    def prepare(self, weight: CanonicalWeight) -> dict[str, Tensor]:
        """Return ``weight`` as named tensors in blocks; see ``small_float_tensors``."""
        return in_blocks(weight, self._spec)


def cuda_small_float_linear(
    x: Tensor,
    words: Tensor,
    scale: Tensor,
    second: Tensor | None,
    bias: Tensor | None,
    scheme: str,
    k: int,
    sizes: Sequence[int],
    in_f32: bool,
    batch_invariant: bool,
) -> Tensor:
    """Return the layer's result; this is the op ``quantdock::cuda_small_float_linear``.

    Raises:
        FormatError: x does not end in K columns.
    """
    n = num_rows(words, second)
    shape = result_shape(x, n, k)
    dtype = torch.float32 if in_f32 else x.dtype
    spec = _spec(scheme)
    if not x.is_cuda:
        plain = plain_grid(words, scale, second, spec, k, sizes).tensors()
        return scaled_linear(
            x.to(dtype), [plain.get(name) for name in NAMES], bias, scheme, k, sizes
        )
    made = execution if words.dim() == 2 else blocks_execution
    run = made(spec, n, k, x.get_device(), batch_invariant)
    if not in_f32:
        kind = (x.shape, x.dtype, second is None, None if bias is None else bias.dtype)
        again = run.replays(kind, x, words, scale, second, bias)
        if again is not None:
            return again
    result = torch.empty(shape, dtype=dtype, device=x.device)
    if shape.numel() == 0:
        return result
    rows = x.reshape(-1, k)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    with torch.cuda.device(x.device):
        run(rows, words, scale, second, bias, result.view(-1, n))
    return result


@lru_cache(maxsize=1024)
def _spec(scheme: str) -> QuantSpec:
    return parse_scheme(scheme).weight


def _empty_result(
    x: Tensor,
    words: Tensor,
    scale: Tensor,
    second: Tensor | None,
    bias: Tensor | None,
    scheme: str,
    k: int,
    sizes: Sequence[int],
    in_f32: bool,
    batch_invariant: bool,
) -> Tensor:
    """Return the result without its values, for tracing."""
    dtype = torch.float32 if in_f32 else x.dtype
    return x.new_empty(result_shape(x, num_rows(words, second), k), dtype=dtype)


def _gradient(
    gradient: Tensor,
    words: Tensor,
    scale: Tensor,
    second: Tensor | None,
    bias: Tensor | None,
    scheme: str,
    k: int,
    sizes: Sequence[int],
    in_f32: bool,
    batch_invariant: bool,
) -> Tensor:
    """Return the gradient of x [..., K] from that of the result [..., N]."""
    grid = plain_grid(words, scale, second, _spec(scheme), k, sizes)
    return input_gradient(gradient, CanonicalWeight(segments=from_grid(grid)))


CUDA_SMALL_FLOAT_LINEAR = define(
    "cuda_small_float_linear",
    "(Tensor x, Tensor words, Tensor scale, Tensor? second, Tensor? bias, str scheme, SymInt k,"
    " SymInt[] sizes, bool in_f32, bool batch_invariant) -> Tensor",
    cuda_small_float_linear,
    _empty_result,
    _gradient,
)
