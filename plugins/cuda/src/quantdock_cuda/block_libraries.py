"""Products of fp8 in blocks by DeepGEMM and FlashInfer, on Hopper, where they are installed.

Both read the scales of x as our quantization writes them, the rows of each group side by side and
their number a multiple of 4, and those of the weight as they are stored; so nothing is converted,
neither at load nor at a call.
Source: DeepGEMM's README ("Interfaces") and FlashInfer's reference of fp8_blockscale_gemm_sm90.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from quantdock_cuda.library import Layer
from quantdock_triton.tile import Form

_BLOCK = 128


def takes(layer: Layer) -> bool:
    """Return whether both multiply operands of this kind."""
    return (
        layer.form == Form(x_cols=_BLOCK, weight_cols=_BLOCK, weight_rows=_BLOCK)
        and "wgmma" in layer.features
        and layer.dtype == torch.bfloat16
        and layer.bias_dtype is None
        and layer.n % 64 == 0
        and layer.k % _BLOCK == 0
    )


class DeepGemm:
    """DeepGEMM's product; made where the module can be imported."""

    def __init__(self) -> None:
        self._product: Any = import_module("deep_gemm").fp8_gemm_nt

    def __call__(
        self,
        x: Tensor,
        x_scale: Tensor,
        weight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None,
        m: int,
        dtype: torch.dtype,
    ) -> Tensor:
        """Return ``x @ weight.T`` scaled; shapes as in ``library.product``."""
        out = torch.empty((m, weight.shape[0]), dtype=dtype, device=x.device)
        self._product((x[:m], x_scale[:m]), (weight, weight_scale), out)
        return out


class FlashInfer:
    """FlashInfer's product; made where the module can be imported."""

    def __init__(self) -> None:
        self._product: Any = import_module("flashinfer.gemm").fp8_blockscale_gemm_sm90

    def __call__(
        self,
        x: Tensor,
        x_scale: Tensor,
        weight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None,
        m: int,
        dtype: torch.dtype,
    ) -> Tensor:
        """Return ``x @ weight.T`` scaled; shapes as in ``library.product``."""
        result: Tensor = self._product(x[:m], weight, x_scale[:m], weight_scale, out_dtype=dtype)
        return result
