"""Scales of one layer's keys and values, as tensors for torch and as numbers for launches.

>>> import torch
>>> scale = KVScale.of(torch.tensor([0.5]))
>>> scale.tensor.shape, scale.value
(torch.Size([]), 0.5)
>>> KVScale.of(torch.tensor([0.5, 0.25])).value is None
True
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quantdock.errors import FormatError


@dataclass(frozen=True, slots=True, eq=False)
class KVScale:
    """A static scale; codes times it are the keys, or the values, of a layer.

    Shapes:
        tensor: f32 [] for all heads, or [H], one for each.

    ``value`` is the same as a number, read once at load; None where heads have their own.
    """

    tensor: Tensor
    value: float | None

    @classmethod
    def of(cls, stored: Tensor) -> KVScale:
        """Return the scale of an f32 tensor with one entry, or one for each head, of any rank.

        Raises:
            FormatError: an entry is not a positive number.
        """
        flat = stored.detach().to(torch.float32).reshape(-1)
        if not bool((flat.isfinite() & (flat > 0)).all()):
            raise FormatError(
                f"A KV cache scale is {flat.tolist()[:8]}.",
                why=["codes are multiplied by it, so it is a positive number"],
                todo="Calibrate the scale again, or leave it out.",
            )
        if flat.numel() != 1:
            return cls(flat, None)
        return cls(flat.reshape(()), float(flat))

    @property
    def granularity(self) -> str:
        """Return "tensor" or "head"."""
        return "head" if self.value is None else "tensor"

    def __str__(self) -> str:
        if self.value is not None:
            return f"{self.value:g}"
        low, high = self.tensor.min().item(), self.tensor.max().item()
        return f"{low:g} to {high:g} ({self.tensor.numel()} heads)"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KVScales:
    """The scales of one layer; None: computed for each token and head as it is stored."""

    k: KVScale | None = None
    v: KVScale | None = None

    def of_heads(self, heads: range) -> KVScales:
        """Return the scales of ``heads``, which a rank holds; one for all heads stays."""
        return KVScales(k=_of_heads(self.k, heads), v=_of_heads(self.v, heads))


def _of_heads(scale: KVScale | None, heads: range) -> KVScale | None:
    if scale is None or scale.value is not None:
        return scale
    return KVScale.of(scale.tensor[heads.start : heads.stop].clone())
