"""Products by the libraries behind ``torch._scaled_mm``: cuBLASLt, and CUTLASS for whole rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quantdock_triton.tile import Form

_BLOCK = 128
_HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What decides whether a library multiplies the operands of a layer [N, K].

    Attributes:
        scales: whether x, and the weight, have one scale for all.
        dtype: of the result.
    """

    form: Form
    features: frozenset[str]
    n: int
    k: int
    scales: tuple[bool, bool]
    dtype: torch.dtype
    bias_dtype: torch.dtype | None


def takes(layer: Layer) -> bool:
    """Return whether the libraries multiply operands of this kind."""
    form, n, k = layer.form, layer.n, layer.k
    if form.weight_only or form.element != "fp8_e4m3" or n % 16 or k % 16:
        return False
    fits_bias = layer.bias_dtype is None or layer.bias_dtype == layer.dtype
    if layer.scales == (True, True):
        return layer.dtype in _HALVES and fits_bias
    if layer.dtype != torch.bfloat16:
        return False
    if not form.is_grouped:
        return layer.scales == (False, False) and fits_bias
    sizes = (form.x_cols, form.weight_cols, form.weight_rows)
    # Four scales make 16 bytes, of which rows of them are multiples.
    is_blocks = sizes == (_BLOCK, _BLOCK, _BLOCK) and k % (4 * _BLOCK) == 0
    return is_blocks and layer.bias_dtype is None and "wgmma" in layer.features


def product(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    m: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return ``x @ weight.T`` scaled, [M, N] in ``dtype``.

    Shapes:
        x: codes [M + 0..3, K]. x_scale: f32 [1, 1] or [M + 0..3, groups], columns side by side.
        weight: codes [N, K]. weight_scale: f32, contiguous: [1, 1], [N, 1] or the grid of blocks.
    """
    if x_scale.shape[1] == 1:
        x, x_scale = x[:m], x_scale[:m]
    result = torch._scaled_mm(
        x,
        weight.t(),
        scale_a=x_scale,
        scale_b=weight_scale.t(),
        bias=bias,
        out_dtype=dtype,
        use_fast_accum=x_scale.shape[1] == 1,
    )
    return result[:m]
