"""What an adapter's runner must know of the layer it adds to, without touching its weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantdock.methods.expert_shape import ExpertShape
from quantdock.schemes import Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFormat:
    """One layer as adapters see it: sizes, what it computes with, where it lives.

    Of experts: both features are H, ``scheme`` is that of w13, and ``experts`` has the other sizes.
    """

    in_features: int
    out_features: int
    scheme: Scheme | None  # executed; None: unquantized
    kernel: str | None
    dtype: torch.dtype  # of activations, and of what an adapter adds
    device: torch.device
    experts: ExpertShape | None = None
