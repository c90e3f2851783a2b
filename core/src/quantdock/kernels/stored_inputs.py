"""What a checkpoint stores of a layer's inputs: static scales, zero points, a multiplier."""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.numerics import CanonicalWeight
from quantdock.schemes import Scheme

_INPUTS = {
    "input_scale": "a static input scale",
    "input_zero": "a static input zero point",
    "input_multiplier": "an input multiplier",
}


def stored_inputs(scheme: Scheme, weight: CanonicalWeight) -> dict[str, Tensor]:
    """Return what inputs are quantized and multiplied with, as the scheme demands."""
    is_static = scheme.is_static
    has_zero = is_static and scheme.activation is not None and scheme.activation.zero
    demanded = {
        "input_scale": (is_static, weight.input_scale if is_static else None, torch.float32),
        "input_zero": (has_zero, weight.input_zero if is_static else None, torch.int32),
        "input_multiplier": (scheme.input_multiplier, weight.input_multiplier, torch.float32),
    }
    for name, (wanted, tensor, _) in demanded.items():
        if wanted is not (tensor is not None):
            shape = tuple(tensor.shape) if tensor is not None else "missing"
            raise FormatError(
                f"{scheme} needs {_INPUTS[name] if wanted else f'no {name}'} and the weight brings "
                f"{'none' if wanted else 'one'}.",
                why=[f"{name}: {shape}"],
                todo="Choose the scheme that the stored tensors belong to.",
            )
    return {n: t.to(d).reshape(-1) for n, (_, t, d) in demanded.items() if t is not None}
