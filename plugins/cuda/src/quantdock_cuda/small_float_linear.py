"""The linear layer of fp4 and fp6 weights (MX, NVFP4) and activations as given, as one operator.

Codes lie in 16-bit words and scales stay bytes (``quantdock_triton.small_float_layout``). Going
back gives every bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import QuantSpec
from quantdock.kernel import Problem
from quantdock.kernels.input_gradient import input_gradient
from quantdock.kernels.layout import Grid, codes_of, from_grid, grid_with, to_grid
from quantdock.kernels.ops import define
from quantdock.kernels.scaled_linear import NAMES, result_shape, scaled_linear
from quantdock.numerics import CanonicalWeight, join, quantize_weight, torch_dtype
from quantdock.schemes import parse_scheme
from quantdock_cuda.small_float_execution import execution
from quantdock_triton.small_float_layout import (
    MOST_SCALE,
    pack_runs,
    pack_scale,
    unpack_runs,
    unpack_scale,
)
from quantdock_triton.small_float_matmul import FloatWeight, small_float_of

WORDS, SCALE, SECOND = "weight_words", "weight_scale_bytes", "weight_scale_2"


class CudaSmallFloatLinear:
    """Runs fp4 and fp6 weights in groups, with scales of one or two levels."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._scheme = str(problem.scheme)
        self._spec = problem.scheme.weight
        self._sizes = list(problem.shards)

    def prepare(self, weight: CanonicalWeight) -> dict[str, Tensor]:
        """Return ``weight`` as named tensors.

        ``weight_words`` int16 [N, words]; ``weight_scale_bytes`` uint8 [N, scales of runs];
        ``weight_scale_2`` f32 [N], where the scheme has two levels.

        Raises:
            FormatError: the weight has another format than the problem, or scales that are none of
                its kind, or above 2^65.
        """
        grid, packing = to_grid(weight, self._spec), small_float_of(self._spec).packing
        if bool((grid.scale > MOST_SCALE).any()):
            raise FormatError(
                f"A scale of {float(grid.scale.max()):.3g} is above 2^65.",
                why=["the kernel multiplies codes by scales times 2^62, in bfloat16"],
                todo="Set QUANTDOCK_KERNEL=reference to run the slow path.",
            )
        tensors = {
            WORDS: pack_runs(codes_of(grid).view(torch.uint8), packing),
            SCALE: pack_scale(grid.scale, self._spec.scale, grid.k, packing),
        }
        if grid.second is not None:
            tensors[SECOND] = _of_rows(grid.second, len(grid.scale))
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the weight that ``prepare`` got, bit for bit."""
        grid = plain_grid(tensors, self._spec, self._k, self._sizes)
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
    n = len(words)
    shape = result_shape(x, n, k)
    dtype = torch.float32 if in_f32 else x.dtype
    spec = _spec(scheme)
    if not x.is_cuda:
        plain = _plain_grid(words, scale, second, spec, k, sizes).tensors()
        return scaled_linear(
            x.to(dtype), [plain.get(name) for name in NAMES], bias, scheme, k, sizes
        )
    run = execution(spec, n, k, x.get_device(), batch_invariant)
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
    weight = FloatWeight(words=words, scale=scale, second=second, last=n)
    with torch.cuda.device(x.device):
        run(rows, weight, bias, result.view(-1, n))
    return result


def plain_grid(
    tensors: Mapping[str, Tensor], spec: QuantSpec, k: int, sizes: Sequence[int]
) -> Grid:
    """Return the weight in the plain layout of the core."""
    return _plain_grid(tensors[WORDS], tensors[SCALE], tensors.get(SECOND), spec, k, sizes)


def _plain_grid(
    words: Tensor,
    scale: Tensor,
    second: Tensor | None,
    spec: QuantSpec,
    k: int,
    sizes: Sequence[int],
) -> Grid:
    packing = small_float_of(spec).packing
    return grid_with(
        unpack_runs(words, k, packing),
        unpack_scale(scale, spec.scale, k, packing),
        spec,
        sizes,
        second=None if second is None else second[:, None],
    )


def _of_rows(second: Tensor, n: int) -> Tensor:
    """Return the second scales, one for each of ``n`` rows.

    Raises:
        FormatError: they differ along a row.
    """
    if second.shape[1] > 1:
        raise FormatError(
            f"Second scales of shape {list(second.shape)} differ along a row.",
            why=["the kernel takes one for a row, at most"],
            todo="Set QUANTDOCK_KERNEL=reference to run the slow path.",
        )
    return second.expand(n, 1).reshape(-1).contiguous()


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
    return x.new_empty(result_shape(x, len(words), k), dtype=dtype)


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
    grid = _plain_grid(words, scale, second, _spec(scheme), k, sizes)
    return input_gradient(gradient, CanonicalWeight(segments=from_grid(grid)))


CUDA_SMALL_FLOAT_LINEAR = define(
    "cuda_small_float_linear",
    "(Tensor x, Tensor words, Tensor scale, Tensor? second, Tensor? bias, str scheme, SymInt k,"
    " SymInt[] sizes, bool in_f32, bool batch_invariant) -> Tensor",
    cuda_small_float_linear,
    _empty_result,
    _gradient,
)
