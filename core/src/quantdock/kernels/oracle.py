"""The oracle: what a quantized linear layer means, in the plainest words. Every kernel is compared
with it, so it is slow and obvious, and shares no step with the kernels beside it.

>>> import torch
>>> from quantdock.formats import parse_spec
>>> from quantdock.numerics import CanonicalWeight, Segment
>>> from quantdock.schemes import Scheme
>>> spec = parse_spec("int8[1x*]")
>>> codes, scale = torch.tensor([[2, -3]], dtype=torch.int8), torch.tensor([[0.5]])
>>> weight = CanonicalWeight(segments=(Segment(spec=spec, codes=codes, scale=scale),))
>>> linear(Scheme(weight=spec), weight, torch.tensor([[1.0, 2.0]])).tolist()
[[-2.0]]
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock.formats import QuantSpec
from quantdock.numerics import CanonicalWeight, dequantize, fold_input, quantize
from quantdock.schemes import Scheme


def linear(
    scheme: Scheme, weight: CanonicalWeight, x: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Return ``x @ weight.T + bias`` with the operands that ``scheme`` says.

    Operands are f32, products and sums f64, and the result is rounded once, to x's dtype.

    Shapes:
        x: [..., K]. bias: [N]. Returns [..., N].
    """
    rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    if weight.input_multiplier is not None:
        rows = rows.to(torch.float32) * weight.input_multiplier
    if scheme.activation is not None:
        rows = quantized_activation(rows, scheme.activation, weight.input_scale, weight.input_zero)
    result = rows.double() @ weight.dequantize().double().T
    if bias is not None:
        result = result + bias.double()
    return result.to(x.dtype).reshape(*x.shape[:-1], result.shape[-1])


def quantized_activation(
    x: Tensor, spec: QuantSpec, input_scale: Tensor | None, input_zero: Tensor | None = None
) -> Tensor:
    """Return ``x`` [M, K] quantized and dequantized, as f32.

    What fused shards brought is folded to one (``fold_input``); a dynamic spec has no use for it.
    NaN stays NaN in integer elements too.
    """
    if x.shape[0] == 0:
        return x.to(torch.float32)
    scale = zero = second = None
    if spec.is_static and input_scale is not None:
        scale, zero = fold_input(input_scale, input_zero, spec)
    if spec.dynamic:  # what is stored above dynamic scales is the second one
        scale, second = None, scale
    made = quantize(x, spec, scale=scale, zero=zero, second_scale=second)
    values = dequantize(
        made.codes, made.scale, spec, zero=made.zero, second_scale=made.second_scale
    )
    return torch.where(x.isnan(), torch.nan, values)
