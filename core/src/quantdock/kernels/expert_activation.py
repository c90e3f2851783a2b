"""What experts compute between w13 and w2, by name: so that a fused kernel can say what it does.

>>> from torch.nn.functional import silu
>>> name_activation(lambda h: silu(h[..., :3]) * h[..., 3:], "gate_up", intermediate=3)
'silu'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

_Gate = Callable[[Tensor, Tensor], Tensor]


def _times(function: Callable[[Tensor], Tensor]) -> _Gate:
    return lambda gate, up: function(gate) * up


def _clamped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return gpt-oss's gate: alpha 1.702, limit 7, up + 1."""
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


# Name -> function of gate and up. Without a gate, what stands before the product is applied to up.
ACTIVATIONS: Mapping[str, _Gate] = {
    "silu": _times(F.silu),
    "gelu": _times(F.gelu),
    "gelu_tanh": _times(partial(F.gelu, approximate="tanh")),
    "relu": _times(F.relu),
    "relu2": _times(lambda x: F.relu(x).square()),
    "clamped_swiglu": _clamped_swiglu,
}


def split_w13(hidden: Tensor, order: str) -> tuple[Tensor, Tensor]:
    """Return gate and up [..., I] of what w13 returns; without a gate, up and ones."""
    if order == "up":
        return hidden, torch.ones_like(hidden)
    if order == "interleaved":
        return hidden[..., ::2], hidden[..., 1::2]
    gate, up = hidden.chunk(2, dim=-1)
    return gate, up


def name_activation(gate: Callable[[Tensor], Tensor], order: str, *, intermediate: int) -> str:
    """Return which of ACTIVATIONS ``gate`` computes, told by its values; empty: none of them."""
    width = intermediate if order == "up" else 2 * intermediate
    with torch.device("cpu"):  # layers are made on no device
        hidden = 8 * torch.randn(4, width, generator=torch.Generator().manual_seed(0))
        found, parts = gate(hidden), split_w13(hidden, order)
        for name, function in ACTIVATIONS.items():
            if torch.allclose(function(*parts), found, rtol=1e-4, atol=1e-5):
                return name
    return ""
