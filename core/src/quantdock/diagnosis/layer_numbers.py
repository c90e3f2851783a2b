"""One layer's numbers on real activations: kernel, oracle and 16-bit weight beside each other.

All three see the same activations, so an error that an earlier layer made is not counted again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quantdock.diagnosis.stored_weight import row_pieces
from quantdock.diagnosis.zero_shift import mean_steps
from quantdock.kernels import oracle
from quantdock.numerics import CanonicalWeight, join, quantize_weight
from quantdock.schemes import Scheme

# How much more than rounding to the format a layer may differ from its 16-bit weight: methods
# that move errors between weights have larger errors of weights and smaller ones of results.
_SLACK, _SLACK_OF_ROWS = 2.0, 3.0
_FLOOR = 0.01


@dataclass(slots=True)
class Error:
    """|found - expected| / |expected| (Frobenius), summed up piece by piece in float64."""

    difference: float = 0.0
    expected: float = 0.0

    def add(self, found: Tensor, expected: Tensor) -> None:
        """Count a piece; what is not finite in ``expected`` must be the same in ``found``."""
        found, expected = found.double(), expected.double()
        finite = expected.isfinite()
        same = (found == expected) | (found.isnan() & expected.isnan())
        difference = torch.where(same, 0.0, found - torch.where(finite, expected, 0.0))
        self.difference += float(difference.square().sum())
        self.expected += float(expected[finite].square().sum())

    @property
    def relative(self) -> float:
        """Return the error; infinite where nothing was expected or what was found is no number."""
        if self.difference == 0.0:
            return 0.0
        if self.expected == 0.0 or not math.isfinite(self.difference):
            return math.inf
        return math.sqrt(self.difference / self.expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseError:
    """How far a layer's scheme is from its 16-bit weight, and how far rounding alone would be.

    ``explained`` and ``explained_row`` are those of the 16-bit weight rounded to the same format.
    ``worst_row`` is the output feature whose weights differ most, ``steps`` how many scales weights
    are too large in the mean.
    """

    result: float
    explained: float
    row: float
    explained_row: float
    worst_row: int
    steps: float | None = None

    @property
    def is_bad(self) -> bool:
        """Return whether rounding to the format does not explain the difference."""
        return (
            not self.result <= _SLACK * self.explained + _FLOOR
            or not self.row <= _SLACK_OF_ROWS * self.explained_row + _FLOOR
        )


def kernel_error(
    scheme: Scheme, weight: CanonicalWeight, x: Tensor, y: Tensor, bias: Tensor | None
) -> float:
    """Return how far ``y`` is from what ``scheme`` means.

    Shapes:
        x: [..., K]. y: [..., N]. bias: [N].
    """
    error = Error()
    for rows, piece in row_pieces(weight):
        part = None if bias is None else bias[rows]
        error.add(y[..., rows], oracle.linear(scheme, piece, x, part))
    return error.relative


def base_error(
    scheme: Scheme, weight: CanonicalWeight, x: Tensor, base: Sequence[Tensor]
) -> BaseError:
    """Return how far the scheme is from the 16-bit weights ``base`` [n, K], one a shard."""
    spec = replace(scheme.weight, act_order=False)  # groups in a row explain as much
    rounded = join([quantize_weight(shard, spec) for shard in base])
    rounded = replace(rounded, input_scale=weight.input_scale)
    plain = base[0] if len(base) == 1 else torch.cat(list(base))
    x = x.float()
    result, explained = Error(), Error()
    row = explained_row = 0.0
    worst = 0
    pieces = zip(row_pieces(weight), row_pieces(rounded), strict=True)
    for (rows, piece), (_, ideal) in pieces:
        wide = plain[rows].float()
        expected = x.double() @ wide.double().T
        result.add(oracle.linear(scheme, piece, x), expected)
        explained.add(oracle.linear(scheme, ideal, x), expected)
        found, index = _worst_row(piece, wide)
        if not found <= row:
            row, worst = found, rows.start + index
        explained_row = max(explained_row, _worst_row(ideal, wide)[0])
    return BaseError(
        result=result.relative,
        explained=explained.relative,
        row=row,
        explained_row=explained_row,
        worst_row=worst,
        steps=mean_steps(weight, plain.float()),
    )


def _worst_row(piece: CanonicalWeight, wide: Tensor) -> tuple[float, int]:
    """Return the largest relative error of a row of weights, and which row has it."""
    difference = (piece.dequantize() - wide).norm(dim=1)
    size = wide.norm(dim=1)
    relative = torch.where(difference == 0, 0.0, difference / size)
    relative = torch.where(relative.isnan(), math.inf, relative)
    index = int(relative.argmax())
    return float(relative[index]), index
