"""Tensors of a layer that is loaded again: memory that is there is written into."""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn

_log = logging.getLogger(__name__)


def written(current: nn.Parameter | None, tensor: Tensor) -> nn.Parameter:
    """Return ``current`` with the bits of ``tensor`` where both are of one kind, else a new one."""
    kind = (tensor.shape, tensor.dtype, tensor.device)
    if current is None or (current.shape, current.dtype, current.device) != kind:
        if current is not None and current.dtype != tensor.dtype:
            _log.warning("A tensor loaded again is %s now: capture graphs anew.", tensor.dtype)
        return nn.Parameter(tensor, requires_grad=False)
    with torch.no_grad():
        current.copy_(tensor)
    return current
