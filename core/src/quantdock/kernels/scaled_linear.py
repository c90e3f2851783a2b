"""The reference linear layer: the fastest right thing that plain torch does on a plain CPU.

A piece of the weight that fits into cache is decoded to f32 (``decode.py``), the scales of its
tiles are multiplied in, and an f32 matrix product uses it before the next piece takes its place.
A scale that covers all columns is multiplied to the result instead. No f32 copy of the weight ever
exists whole; sums are f32 and rounded once, at the end.

It runs on every device that torch has, because it calls nothing but torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.kernel import Problem
from quantdock.kernels.activation import (
    Whole,
    decode_rows,
    quantize_rows,
    two_levels,
    whole_range,
)
from quantdock.kernels.decode import has_lost_nan
from quantdock.kernels.input_gradient import input_gradient
from quantdock.kernels.layout import Grid, from_grid, grid_of, to_grid
from quantdock.kernels.ops import define, define_without_gradient
from quantdock.kernels.product import columns_of_sum, multiply
from quantdock.kernels.quantized_input import QuantizedInput
from quantdock.kernels.stored_inputs import stored_inputs
from quantdock.numerics import CanonicalWeight
from quantdock.schemes import Scheme, parse_scheme

LARGEST_TURN = 1 << 24  # numbers of x, or of the result, in f32 at once: 64 MiB; more take turns


# The tensors of the plain layout, in the order in which the operator gets them.
NAMES = (
    "weight",
    "weight_scale",
    "weight_zero",
    "weight_scale_2",
    "weight_order",
    "weight_group",
    "weight_nan",
    "input_scale",
    "input_zero",
    "input_multiplier",
)
SIGNATURE = (
    "(Tensor x, Tensor?[] tensors, Tensor? bias, str scheme, SymInt k, SymInt[] sizes) -> Tensor"
)
OF_CODES = (
    "(Tensor codes, Tensor scale, Tensor?[] tensors, Tensor? bias, str scheme, SymInt k,"
    " SymInt[] sizes, SymInt m, ScalarType dtype) -> Tensor"
)


class ScaledLinear:
    """Runs every scheme of scaled weights; its tensors are the plain layout of layout.py.

    Attributes:
        optional: tensors that only some weights have, and what means the same as none.
    """

    optional: ClassVar[Mapping[str, float]] = {"weight_nan": 0.0}

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._scheme = str(problem.scheme)
        self._sizes = list(problem.shards)

    def prepare(self, weight: CanonicalWeight) -> dict[str, Tensor]:
        """Return ``weight`` as named tensors.

        ``weight`` [N, K] codes, or [N, bytes] where they are packed; ``weight_scale`` f32 grid.
        Where the scheme has them: ``weight_zero`` as the grid; ``weight_scale_2`` f32 [1, 1] or as
        the grid; ``weight_order`` or ``weight_group``
        int32 [1 or segments, K]; ``input_scale`` f32 and ``input_zero`` int32 [segments];
        ``input_multiplier`` f32 [K]. Where codes are NaN: ``weight_nan`` f32 [N], 0 or NaN.

        Raises:
            FormatError: the weight has another format than the problem, or its input scale, zero
                point or multiplier is missing or is one too many.
        """
        scheme, sorts = self.problem.scheme, self.problem.equal_groups is not False
        tensors = to_grid(weight, scheme.weight, sorts=sorts).tensors()
        tensors.update(stored_inputs(scheme, weight))
        lost = has_lost_nan(tensors["weight"], scheme.weight.element)
        if bool(lost.any()):
            tensors["weight_nan"] = torch.where(lost, torch.nan, 0.0)
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the weight that ``prepare`` got, bit for bit."""
        grid = grid_of(tensors, self.problem.scheme.weight, self._k(tensors), self._sizes)
        return CanonicalWeight(
            segments=from_grid(grid),
            input_scale=tensors.get("input_scale"),
            input_zero=tensors.get("input_zero"),
            input_multiplier=tensors.get("input_multiplier"),
        )

    def apply(self, tensors: Mapping[str, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``x @ weight.T + bias``; x is [..., K] of any strides, the result in its dtype."""
        given = [tensors.get(name) for name in NAMES]
        result: Tensor = self._operator()(
            x, given, bias, self._scheme, self._k(tensors), self._sizes
        )
        return result

    def apply_quantized(
        self, tensors: Mapping[str, Tensor], x: QuantizedInput, bias: Tensor | None
    ) -> Tensor:
        """Return what ``apply`` returns for the x that was quantized, in x's dtype."""
        given = [tensors.get(name) for name in NAMES]
        k, m = self._k(tensors), x.shape[:-1].numel()
        result: Tensor = self._operator_of_codes()(
            x.codes, x.scale, given, bias, self._scheme, k, self._sizes, m, x.dtype
        )
        return result.view(*x.shape[:-1], result.shape[1])

    def _operator(self) -> Callable[..., Tensor]:
        return SCALED_LINEAR

    def _operator_of_codes(self) -> Callable[..., Tensor]:
        return SCALED_LINEAR_OF_CODES

    def apply_partial(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return ``x @ weight.T`` in f32, not rounded: a sum over ranks is rounded once."""
        return self.apply(tensors, x.to(torch.float32), None)

    def warmup(self, m_buckets: Sequence[int]) -> None:
        """Do nothing: there is nothing to compile or to tune."""

    def _k(self, tensors: Mapping[str, Tensor]) -> int:
        return tensors["weight"].shape[1] if self.problem.k is None else self.problem.k


def scaled_linear(
    x: Tensor,
    tensors: Sequence[Tensor | None],
    bias: Tensor | None,
    scheme: str,
    k: int,
    sizes: Sequence[int],
) -> Tensor:
    """Return the layer's result; this is the op ``quantdock::scaled_linear``.

    Args:
        tensors: the plain layout, as NAMES has it.
        sizes: output features of each fused shard; empty: one shard.
    Raises:
        FormatError: x does not end in K columns.
    """
    named = dict(zip(NAMES, tensors, strict=True))
    parsed = parse_scheme(scheme)
    grid = grid_of(named, parsed.weight, k, sizes)
    shape = result_shape(x, grid.codes.shape[0], k)
    if shape.numel() == 0:
        return x.new_empty(shape)
    rows = input_rows(x, k, named["input_multiplier"])
    if parsed.activation is not None and parsed.activation.second is not None:
        rows = two_levels(rows, parsed.activation, named["input_scale"])
        parsed = parsed.weight_only()
    whole = whole_range(rows, parsed.activation, named["input_scale"], named["input_zero"])
    addends = [a for a in (bias, named["weight_nan"]) if a is not None]
    turns = [
        _run(rows[turn], grid, parsed, whole, addends).to(x.dtype)
        for turn in row_turns(rows.shape[0], max(shape[-1], k))
    ]
    result = turns[0] if len(turns) == 1 else torch.cat(turns)
    return result.view(shape)


def _run(
    rows: Tensor, grid: Grid, scheme: Scheme, whole: Whole | None, addends: Sequence[Tensor]
) -> Tensor:
    """Return the result of some rows of x [M, K], in f32."""
    values, row_scale = rows.to(torch.float32), None
    if scheme.activation is not None:
        values, row_scale = quantize_rows(values, scheme.activation, whole)
    return _product(values, row_scale, grid, scheme, addends)


def _product(
    values: Tensor,
    row_scale: Tensor | None,
    grid: Grid,
    scheme: Scheme,
    addends: Sequence[Tensor],
) -> Tensor:
    sums = multiply(values, grid, most=columns_of_sum(scheme))
    if row_scale is not None:
        sums.mul_(row_scale)
    for addend in addends:
        sums.add_(addend)
    return sums


def scaled_linear_of_codes(
    codes: Tensor,
    scale: Tensor,
    tensors: Sequence[Tensor | None],
    bias: Tensor | None,
    scheme: str,
    k: int,
    sizes: Sequence[int],
    m: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return the layer's result [m, N] for codes and scales of x, as QuantizedInput has them."""
    named = dict(zip(NAMES, tensors, strict=True))
    parsed = parse_scheme(scheme)
    assert parsed.activation is not None, "only such layers take codes"
    grid = grid_of(named, parsed.weight, k, sizes)
    n = grid.codes.shape[0]
    addends = [a for a in (bias, named["weight_nan"]) if a is not None]
    turns = [codes.new_empty((0, n), dtype=dtype)]
    for turn in row_turns(m, max(n, k)):
        own = scale if scale.shape[0] == 1 else scale[turn]
        values, row_scale = decode_rows(codes[turn], own, parsed.activation)
        turns.append(_product(values, row_scale, grid, parsed, addends).to(dtype))
    return torch.cat(turns)


def input_rows(x: Tensor, k: int, multiplier: Tensor | None) -> Tensor:
    """Return float x [..., k] as [M, k]: in f32 and multiplied where there is a multiplier [k]."""
    if not x.is_floating_point():
        raise FormatError(f"A layer was given x in {x.dtype}.", todo="Pass x in a float dtype.")
    rows = x.reshape(x.shape[:-1].numel(), k)
    return rows if multiplier is None else rows.to(torch.float32) * multiplier


def row_turns(m: int, widest: int) -> list[slice]:
    """Return ``m`` rows of x in turns; in each, rows times ``widest`` stay below LARGEST_TURN."""
    step = max(LARGEST_TURN // max(widest, 1), 1)
    return [slice(start, min(start + step, m)) for start in range(0, m, step)]


def result_shape(x: Tensor, n: int, k: int) -> torch.Size:
    """Return the shape of ``x @ weight.T`` for a weight [n, k].

    Raises:
        FormatError: x does not end in K columns.
    """
    if x.shape[-1] != k:
        raise FormatError(
            f"A layer of {k} input features was given x of shape {tuple(x.shape)}.",
            todo="Pass x as [..., K].",
        )
    return torch.Size((*x.shape[:-1], n))


def empty_result(
    x: Tensor,
    tensors: Sequence[Tensor | None],
    bias: Tensor | None,
    scheme: str,
    k: int,
    sizes: Sequence[int],
) -> Tensor:
    """Return the result without its values, for tracing."""
    weight = tensors[0]
    assert weight is not None, "every layout has codes"
    return x.new_empty(result_shape(x, weight.shape[0], k))


def empty_result_of_codes(codes: Tensor, scale: Tensor, tensors: Any, *others: Any) -> Tensor:
    """Return the result without its values, for tracing."""
    m, dtype = others[-2:]
    return codes.new_empty((m, tensors[0].shape[0]), dtype=dtype)


def gradient_of_input(
    gradient: Tensor,
    tensors: Sequence[Tensor | None],
    bias: Tensor | None,
    scheme: str,
    k: int,
    sizes: Sequence[int],
) -> Tensor:
    """Return the gradient of x [..., K] from that of the result [..., N]."""
    named = dict(zip(NAMES, tensors, strict=True))
    grid = grid_of(named, parse_scheme(scheme).weight, k, sizes)
    multiplier = named["input_multiplier"]
    weight = CanonicalWeight(segments=from_grid(grid), input_multiplier=multiplier)
    return input_gradient(gradient, weight)


SCALED_LINEAR = define("scaled_linear", SIGNATURE, scaled_linear, empty_result, gradient_of_input)
SCALED_LINEAR_OF_CODES = define_without_gradient(
    "scaled_linear_of_codes", OF_CODES, scaled_linear_of_codes, empty_result_of_codes
)
