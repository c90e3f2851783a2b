"""Classes derived from ``nn.Linear`` that do something else with their weight.

A grouped product or a router is an ``nn.Linear`` by inheritance alone: our layer in its place would
give other numbers, or fail in the first forward.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional

_OUT, _IN = 5, 3  # so that no division into groups fits by chance


def computes_otherwise(module: nn.Module) -> bool:
    """Return whether ``module`` is an ``nn.Linear`` whose own forward is not x @ W^T + bias.

    >>> class Doubled(nn.Linear):
    ...     def forward(self, x):
    ...         return 2 * super().forward(x)
    >>> computes_otherwise(Doubled(8, 8)), computes_otherwise(nn.Linear(8, 8))
    (True, False)
    """
    is_ours = hasattr(module, "quant_method")
    if not isinstance(module, nn.Linear) or is_ours or type(module).forward is nn.Linear.forward:
        return False
    weight, x = torch.arange(15.0).reshape(_OUT, _IN), torch.tensor([[1.0, -2.0, 4.0]])
    bias = None if module.bias is None else torch.arange(5.0)
    small: Any = copy.copy(module)
    small._parameters = {"weight": weight, "bias": bias}
    try:
        result = small(x)
    except Exception:  # whatever it needs, x alone is not enough
        return True
    expected = functional.linear(x, weight, bias)
    return not isinstance(result, torch.Tensor) or not torch.equal(result, expected)
