"""QuantizedInput: the x of a layer as codes, made before the layer is called.

What comes before a layer (a gate, a norm) can write codes instead of 16-bit values, and layers
that share an input can share its codes. A layer says in its ``input_format`` what it wants; the
functions of ``quantdock.functional`` make it. See docs/quantized-inputs.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import QuantSpec


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class QuantizedInput:
    """x [..., K] as codes and scales: ``scale * code``.

    Shapes:
        codes: [M or a few rows more, K], of which M count: the product of the leading dimensions.
        scale: f32, [1, 1] of all of x, else as many rows as codes and a column for each group.
    """

    codes: Tensor
    scale: Tensor
    spec: QuantSpec
    shape: torch.Size  # of x
    dtype: torch.dtype  # of x, and of the layer's result


class InputKernel(Protocol):
    """What makes inputs of one spec and K; scales of x are computed where ``scale`` is None.

    Codes and scales are shaped as in QuantizedInput; x is [..., K] of any strides. Values between
    the steps of a function are rounded to x's dtype, as torch's own functions do.
    """

    def quantize(self, x: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the codes of ``x``, and their scales."""
        ...

    def silu_mul(self, x: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the codes of ``silu(gate) * up`` for x [..., 2K], gate first; their scales."""
        ...

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, scale: Tensor | None, residual: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the codes of the norm of ``x + residual``, their scales, and the sum, as x."""
        ...


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InputFormat:
    """What the kernel of a layer wants its input x [..., K] to be, and what makes it so.

    ``scale``: f32, the static scales of x, one for each fused shard; None where x decides.
    """

    spec: QuantSpec
    k: int
    scale: Tensor | None
    kernel: InputKernel


def refused(layer: str, given: QuantizedInput, wanted: str) -> FormatError:
    """Return the error of a layer that takes no such input."""
    return FormatError(
        f"{layer} was given x as {given.spec} codes of shape {tuple(given.shape)}.",
        why=[f"it takes {wanted}"],
        todo="Quantize for layer.input_format, or pass x itself where that is None.",
    )
