"""What comes before a quantized layer, in one step with the quantization of the layer's input.

The platform's kernel does it where a plugin offers one, else plain torch. Results are those of the
functions apart: their values rounded to x's dtype, then quantized as the layer would.

>>> import torch
>>> from quantdock import dispatch_for, get_quantization_config
>>> from quantdock.layers import ReplicatedLinear
>>> fp8 = get_quantization_config("fp8_per_channel", "cpu").online().bind(dispatch_for("cpu"))
>>> down = ReplicatedLinear(64, 32, bias=False, quant_config=fp8)
>>> down.weight.weight_loader(down.weight, torch.randn(32, 64))
>>> down.quant_method.process_weights_after_loading(down)
>>> gate_up = torch.randn(4, 128)  # what a fused gate and up return
>>> x = silu_mul_quantize(gate_up, down.input_format)
>>> str(x.spec), x.codes.dtype, down(x).shape
('fp8_e4m3[1x*]:dynamic', torch.float8_e4m3fn, torch.Size([4, 32]))
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.kernels.quantized_input import InputFormat as InputFormat
from quantdock.kernels.quantized_input import QuantizedInput as QuantizedInput


def quantize_input(x: Tensor, to: InputFormat) -> QuantizedInput:
    """Return ``x`` [..., K] as layers of this format take it, for all of them.

    Raises:
        FormatError: x does not end in K columns, or wants a gradient.
    """
    _require(x, to.k, to)
    return _made(to.kernel.quantize(x, to.scale), x, to)


def silu_mul_quantize(x: Tensor, to: InputFormat) -> QuantizedInput:
    """Return ``silu(gate) * up`` for x [..., 2K], which has gate's columns first, then up's.

    Raises:
        FormatError: x does not end in 2K columns, or wants a gradient.
    """
    _require(x, 2 * to.k, to)
    return _made(to.kernel.silu_mul(x, to.scale), x, to)


def rms_norm_quantize(
    x: Tensor, weight: Tensor, eps: float, to: InputFormat, residual: Tensor | None = None
) -> tuple[QuantizedInput, Tensor]:
    """Return the norm of ``x + residual`` times ``weight``, and that sum; without one, x itself.

    Shapes:
        x, residual: [..., K]. weight: [K].
    Raises:
        FormatError: shapes do not fit, or x or residual want a gradient.
    """
    _require(x, to.k, to)
    if residual is not None:
        _require(residual, to.k, to)
    if weight.shape != (to.k,) or (residual is not None and residual.shape != x.shape):
        raise FormatError(
            f"The norm of x {tuple(x.shape)} was given weight {tuple(weight.shape)} and residual "
            f"{None if residual is None else tuple(residual.shape)}.",
            why=[f"the layer takes K={to.k} columns"],
            todo="Pass a weight [K] and a residual of x's shape.",
        )
    codes, scale, total = to.kernel.rms_norm(x, weight, eps, to.scale, residual)
    return _made((codes, scale), x, to), total


def _require(x: Tensor, columns: int, to: InputFormat) -> None:
    if x.shape[-1] != columns:
        raise FormatError(
            f"An input of {to.k} features was to be made of x of shape {tuple(x.shape)}.",
            why=[f"it takes {columns} columns"],
            todo="Pass x as [..., K]; [..., 2K] with gate and up side by side.",
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise FormatError(
            "x wants a gradient, and codes have none.",
            todo="Call the layer with x itself, or quantize under torch.no_grad().",
        )


def _made(made: tuple[Tensor, Tensor], x: Tensor, to: InputFormat) -> QuantizedInput:
    codes, scale = made
    shape = torch.Size((*x.shape[:-1], to.k))
    return QuantizedInput(codes=codes, scale=scale, spec=to.spec, shape=shape, dtype=x.dtype)
