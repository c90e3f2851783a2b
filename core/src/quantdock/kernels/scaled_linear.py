"""The reference linear layer: the fastest right thing that plain torch does on a plain CPU.

A piece of the weight that fits into cache is decoded to f32 (``decode.py``), the scales of its
tiles are multiplied in, and an f32 matrix product uses it before the next piece takes its place.
A scale that covers all columns is multiplied to the result instead. No f32 copy of the weight ever
exists whole; sums are f32 and rounded once, at the end.

It runs on every device that torch has, because it calls nothing but torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import ELEMENTS
from quantdock.kernel import Problem
from quantdock.kernels.activation import quantize_rows, whole_scale
from quantdock.kernels.decode import has_lost_nan
from quantdock.kernels.layout import Grid, from_grid, to_grid
from quantdock.kernels.ops import define
from quantdock.kernels.product import multiply
from quantdock.numerics import CanonicalWeight
from quantdock.schemes import Scheme, parse_scheme

LARGEST_TURN = 1 << 24  # numbers of x, or of the result, in f32 at once: 64 MiB; more take turns


class ScaledLinear:
    """Runs every scheme of 8-bit scaled weights; its tensors are the plain layout of layout.py."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._scheme = str(problem.scheme)

    def prepare(self, weight: CanonicalWeight) -> dict[str, Tensor]:
        """Return ``weight`` as named tensors.

        ``weight`` [N, K] codes; ``weight_scale`` f32 grid; ``input_scale`` f32 [segments] where
        activations are static; ``weight_nan`` f32 [N], 0 or NaN, only where codes are NaN.

        Raises:
            FormatError: the weight has another format than the problem, or lacks its input scale.
        """
        scheme = self.problem.scheme
        grid = to_grid(weight, scheme.weight)
        tensors = {"weight": grid.codes, "weight_scale": grid.scale}
        if scheme.is_static:
            if weight.input_scale is None:
                raise FormatError(
                    f"{scheme} needs a static input scale and the weight brings none.",
                    todo="Choose a scheme with dynamic activations, or load the input scale.",
                )
            tensors["input_scale"] = weight.input_scale.to(torch.float32).reshape(-1)
        lost = has_lost_nan(grid.codes, scheme.weight.element)
        if bool(lost.any()):
            tensors["weight_nan"] = torch.where(lost, torch.nan, 0.0)
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the weight that ``prepare`` got, bit for bit."""
        grid = Grid(
            codes=tensors["weight"],
            scale=tensors["weight_scale"],
            spec=self.problem.scheme.weight,
        )
        return CanonicalWeight(
            segments=from_grid(grid, self.problem.shards or (grid.codes.shape[0],)),
            input_scale=tensors.get("input_scale"),
        )

    def apply(self, tensors: Mapping[str, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``x @ weight.T + bias``; x is [..., K] of any strides, the result in its dtype."""
        result: Tensor = torch.ops.quantdock.scaled_linear(
            x,
            tensors["weight"],
            tensors["weight_scale"],
            tensors.get("input_scale"),
            tensors.get("weight_nan"),
            bias,
            self._scheme,
        )
        return result

    def apply_partial(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return ``x @ weight.T`` in f32, not rounded: a sum over ranks is rounded once."""
        return self.apply(tensors, x.to(torch.float32), None)

    def warmup(self, m_buckets: Sequence[int]) -> None:
        """Do nothing: there is nothing to compile or to tune."""


def scaled_linear(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    input_scale: Tensor | None,
    weight_nan: Tensor | None,
    bias: Tensor | None,
    scheme: str,
) -> Tensor:
    """Return the layer's result; this is the op ``quantdock::scaled_linear``.

    Raises:
        FormatError: x does not end in K columns.
    """
    shape = result_shape(x, weight)
    if shape.numel() == 0:
        return x.new_empty(shape)
    parsed = parse_scheme(scheme)
    rows = x.reshape(shape[:-1].numel(), x.shape[-1])
    grid = Grid(codes=weight, scale=weight_scale, spec=parsed.weight)
    whole = whole_scale(rows, parsed.activation, input_scale)
    turns = [
        _run(rows[turn], grid, parsed, whole, (bias, weight_nan))
        for turn in row_turns(rows.shape[0], max(weight.shape))
    ]
    result = turns[0] if len(turns) == 1 else torch.cat(turns)
    return result.view(shape)


def _run(
    rows: Tensor, grid: Grid, scheme: Scheme, whole: Tensor | None, addends: Sequence[Tensor | None]
) -> Tensor:
    """Return the result of some rows of x [M, K], in x's dtype."""
    values, row_scale = rows.to(torch.float32), None
    if scheme.activation is not None:
        values, row_scale = quantize_rows(values, scheme.activation, whole)
    sums = multiply(values, grid, integers=_is_integer(scheme))
    if row_scale is not None:
        sums.mul_(row_scale)
    for addend in addends:
        if addend is not None:
            sums.add_(addend)
    return sums.to(rows.dtype)


def row_turns(m: int, widest: int) -> list[slice]:
    """Return ``m`` rows of x in turns; in each, rows times ``widest`` stay below LARGEST_TURN."""
    step = max(LARGEST_TURN // max(widest, 1), 1)
    return [slice(start, min(start + step, m)) for start in range(0, m, step)]


@lru_cache(maxsize=1024)
def _is_integer(scheme: Scheme) -> bool:
    """Return whether the products are integers as long as no scale is multiplied."""
    specs = (scheme.weight, scheme.activation)
    return all(spec is not None and not ELEMENTS[spec.element].is_float for spec in specs)


def result_shape(x: Tensor, weight: Tensor) -> torch.Size:
    """Return the shape of ``x @ weight.T``.

    Raises:
        FormatError: x does not end in K columns.
    """
    if x.shape[-1] != weight.shape[1]:
        raise FormatError(
            f"A layer of {weight.shape[1]} input features was given x of shape {tuple(x.shape)}.",
            todo="Pass x as [..., K].",
        )
    return torch.Size((*x.shape[:-1], weight.shape[0]))


def empty_result(x: Tensor, weight: Tensor, *others: object) -> Tensor:
    """Return the result without its values, for tracing."""
    return x.new_empty(result_shape(x, weight))


define(
    "scaled_linear",
    "(Tensor x, Tensor weight, Tensor weight_scale, Tensor? input_scale, Tensor? weight_nan,"
    " Tensor? bias, str scheme) -> Tensor",
    scaled_linear,
    empty_result,
)
