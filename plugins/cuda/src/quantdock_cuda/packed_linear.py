"""The linear layer of integer weights of at most eight bits and 16-bit activations, as an operator.

Codes are packed anew when the weight is prepared (``quantdock_triton.packed_layout``), a bijection.
Columns in act-order are sorted by group then, and x follows them at each call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.kernel import Problem
from quantdock.kernels.input_gradient import input_gradient
from quantdock.kernels.layout import Grid, codes_of, from_grid, grid_with, to_sorted_grid
from quantdock.kernels.ops import define
from quantdock.kernels.scaled_linear import NAMES, result_shape, scaled_linear
from quantdock.kernels.stored_inputs import stored_inputs
from quantdock.numerics import CanonicalWeight, torch_dtype
from quantdock.schemes import parse_scheme
from quantdock_cuda.packed_execution import execution, in_half, reads_half
from quantdock_triton.packed_layout import Packing, pack_words, packing_of, unpack_words
from quantdock_triton.packed_matmul import PackedWeight

WORDS, SCALE, ZERO, ORDER = "weight_words", "group_scale", "group_zero", "weight_order"
MULTIPLIER = "input_multiplier"
# By the bits that a code takes: the largest zero point that is exact when it is subtracted.
_MOST_ZERO = {4: 127, 8: 1 << 15}


class CudaPackedLinear:
    """Runs integer weights of 2 to 8 bits with scales per channel or group."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._scheme = str(problem.scheme)
        self._spec = problem.scheme.weight
        self._sizes = list(problem.shards)
        self._scales: set[torch.dtype] = set()  # of weights that were prepared

    def prepare(self, weight: CanonicalWeight) -> dict[str, Tensor]:
        """Return ``weight`` as named tensors.

        ``weight_words`` int16 [N / 64, blocks, 64, plane]; ``group_scale`` f32 [groups, N]. Where
        the scheme has them: ``group_zero`` likewise, then both are float16 on Hopper where that is
        exact; ``weight_order`` int32 [1 or segments, K]; ``input_multiplier`` f32 [K].

        Raises:
            FormatError: groups in act-order are of unequal size, or a zero point is too large.
        """
        grid = to_sorted_grid(weight, self._spec)
        packing = packing_of(self._spec, grid.k)
        codes = codes_of(grid).to(torch.int16) + _offset(self._spec, packing)
        tensors = {
            WORDS: pack_words(codes.to(torch.uint8), packing),
            SCALE: grid.scale.expand(len(codes), -1).T.contiguous(),
        }
        if grid.zero is not None:
            zero = self._zero(grid.zero.expand(len(codes), -1).T, packing)
            if torch.float32 not in self._scales and reads_half(zero):  # as it was loaded before
                tensors[SCALE], zero = in_half(tensors[SCALE], zero)
            tensors[ZERO] = zero
        self._scales.add(tensors[SCALE].dtype)
        if grid.order is not None:
            tensors[ORDER] = grid.order
        return {**tensors, **stored_inputs(self.problem.scheme, weight)}

    def alike(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what ``prepare`` made with scales and zero points in f32, as for any weight."""
        self._scales.add(torch.float32)
        wide = (SCALE, ZERO)
        return {name: t.to(torch.float32) if name in wide else t for name, t in tensors.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the weight that ``prepare`` got, bit for bit."""
        grid = plain_grid(tensors, self._spec, self._k(tensors), self._sizes)
        return CanonicalWeight(
            segments=from_grid(grid), input_multiplier=tensors.get("input_multiplier")
        )

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
        problem, spec = self.problem, self._spec
        if problem.n is None or problem.k is None:
            return
        n, k = problem.n, problem.k
        device, dtype = torch.device("cuda"), torch_dtype(problem.dtype or "bfloat16")
        packing = packing_of(spec, k)
        scale = torch.ones(-(-k // (packing.group or k)), n, device=device)
        zero = torch.zeros_like(scale) if spec.zero else None
        tensors = {
            WORDS: torch.zeros(
                (*packing.blocks(n, k), 64, packing.plane), dtype=torch.int16, device=device
            )
        }
        if spec.act_order:
            tensors[ORDER] = torch.arange(k, dtype=torch.int32, device=device)[None]
        if problem.scheme.input_multiplier:
            tensors[MULTIPLIER] = torch.ones(k, device=device)
        bias = torch.zeros(n, dtype=dtype, device=device) if problem.has_bias else None
        halves = {torch.float16} if spec.zero and reads_half(scale) else set()
        for kind in self._scales or {torch.float32, *halves}:
            tensors[SCALE] = scale.to(kind)
            if zero is not None:
                tensors[ZERO] = zero.to(kind)
            for m in m_buckets:
                self.apply(tensors, torch.zeros((m, k), dtype=dtype, device=device), bias)

    def _run(
        self, tensors: Mapping[str, Tensor], x: Tensor, bias: Tensor | None, *, in_f32: bool
    ) -> Tensor:
        return CUDA_PACKED_LINEAR(
            x,
            tensors[WORDS],
            tensors[SCALE],
            tensors.get(ZERO),
            tensors.get(ORDER),
            tensors.get(MULTIPLIER),
            bias,
            self._scheme,
            self._k(tensors),
            self._sizes,
            in_f32,
            self.problem.batch_invariant,
        )

    def _zero(self, zero: Tensor, packing: Packing) -> Tensor:
        """Return zero points [groups, N] as they are stored."""
        most = _MOST_ZERO[packing.bits]
        low, high = (int(v) for v in zero.aminmax()) if zero.numel() else (0, 0)
        if low < 0 or high > most:
            raise FormatError(
                f"A {self._spec} weight has zero points from {low} to {high}.",
                why=[f"the kernel takes those from 0 to {most}"],
                todo="Set QUANTDOCK_KERNEL=reference to run the slow path.",
            )
        return zero.to(torch.float32).contiguous()

    def _k(self, tensors: Mapping[str, Tensor]) -> int:
        assert self.problem.k is not None, "whoever makes a layer knows its size"
        return self.problem.k


def cuda_packed_linear(
    x: Tensor,
    words: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    order: Tensor | None,
    multiplier: Tensor | None,
    bias: Tensor | None,
    scheme: str,
    k: int,
    sizes: Sequence[int],
    in_f32: bool,
    batch_invariant: bool,
) -> Tensor:
    """Return the layer's result; this is the op ``quantdock::cuda_packed_linear``.

    Raises:
        FormatError: x does not end in K columns.
    """
    dtype = torch.float32 if in_f32 else x.dtype
    if not x.is_cuda:
        named = {WORDS: words, SCALE: scale, ZERO: zero, ORDER: order}
        given = {name: t for name, t in named.items() if t is not None}
        plain: dict[str, Tensor | None] = {
            **plain_grid(given, parse_scheme(scheme).weight, k, sizes).tensors(),
            MULTIPLIER: multiplier,
        }
        return scaled_linear(
            x.to(dtype), [plain.get(name) for name in NAMES], bias, scheme, k, sizes
        )
    run = execution(_packing(scheme, k), scale.shape[1], k, x.get_device(), batch_invariant)
    if not in_f32 and (order is None or order.shape[0] == 1):
        dtypes = (x.dtype, scale.dtype, None if bias is None else bias.dtype)
        kind = (x.shape, dtypes, zero is None, order is None, multiplier is None)
        again = run.replays(kind, x, words, scale, zero, order, multiplier, bias)
        if again is not None:
            return again
    weight = PackedWeight(words=words, scale=scale, zero=zero, last=scale.shape[1])
    result = torch.empty(result_shape(x, weight.last, k), dtype=dtype, device=x.device)
    if result.numel() > 0:
        with torch.cuda.device(x.device):
            for part, own in _by_order(weight, order, sizes):
                rows = run.ordered(x.reshape(-1, k), own, multiplier)
                run(rows, part, bias, result.view(-1, weight.last))
    return result


def _by_order(
    weight: PackedWeight, order: Tensor | None, sizes: Sequence[int]
) -> Iterator[tuple[PackedWeight, Tensor | None]]:
    """Yield the rows of the weight whose columns have one order, and that order."""
    if order is None or order.shape[0] == 1:
        yield weight, None if order is None else order[0]
    else:
        start = 0
        for own, size in zip(order, sizes, strict=True):
            yield weight.rows(start, start + size), own
            start += size


def plain_grid(
    tensors: Mapping[str, Tensor], spec: QuantSpec, k: int, sizes: Sequence[int]
) -> Grid:
    """Return the weight in the plain layout of the core."""
    scale, zero = tensors[SCALE].T.to(torch.float32), tensors.get(ZERO)
    packing = packing_of(spec, k)
    codes = unpack_words(tensors[WORDS], len(scale), k, packing).to(torch.int16)
    return grid_with(
        (codes - _offset(spec, packing)).to(torch_dtype(ELEMENTS[spec.element].storage)),
        scale.contiguous(),
        spec,
        sizes,
        zero=None if zero is None else zero.T.contiguous().to(torch.int32),
        order=tensors.get(ORDER),
    )


def _offset(spec: QuantSpec, packing: Packing) -> int:
    """Return what turns a code into the unsigned one that is packed."""
    return packing.middle if ELEMENTS[spec.element].storage == "int8" else 0


@lru_cache(maxsize=1024)
def _packing(scheme: str, k: int) -> Packing:
    return packing_of(parse_scheme(scheme).weight, k)


def _empty_result(
    x: Tensor,
    words: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    order: Tensor | None,
    multiplier: Tensor | None,
    bias: Tensor | None,
    scheme: str,
    k: int,
    sizes: Sequence[int],
    in_f32: bool,
    batch_invariant: bool,
) -> Tensor:
    """Return the result without its values, for tracing."""
    dtype = torch.float32 if in_f32 else x.dtype
    return x.new_empty(result_shape(x, scale.shape[1], k), dtype=dtype)


def _gradient(
    gradient: Tensor,
    words: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    order: Tensor | None,
    multiplier: Tensor | None,
    bias: Tensor | None,
    scheme: str,
    k: int,
    sizes: Sequence[int],
    in_f32: bool,
    batch_invariant: bool,
) -> Tensor:
    """Return the gradient of x [..., K] from that of the result [..., N]."""
    named = {WORDS: words, SCALE: scale, ZERO: zero, ORDER: order}
    given = {name: t for name, t in named.items() if t is not None}
    grid = plain_grid(given, parse_scheme(scheme).weight, k, sizes)
    weight = CanonicalWeight(segments=from_grid(grid), input_multiplier=multiplier)
    return input_gradient(gradient, weight)


CUDA_PACKED_LINEAR = define(
    "cuda_packed_linear",
    "(Tensor x, Tensor words, Tensor scale, Tensor? zero, Tensor? order, Tensor? multiplier,"
    " Tensor? bias, str scheme, SymInt k, SymInt[] sizes, bool in_f32,"
    " bool batch_invariant) -> Tensor",
    cuda_packed_linear,
    _empty_result,
    _gradient,
)
