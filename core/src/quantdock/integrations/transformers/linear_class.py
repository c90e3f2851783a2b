"""Layers of class ``nn.Linear`` whose weight is used otherwise than as x @ W^T.

A grouped product or a router is an ``nn.Linear`` by inheritance alone, and some classes multiply by
the weight of a layer that they never call: ours in its place would give other numbers, or fail in
the first forward.
"""

from __future__ import annotations

import copy
import inspect
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from quantdock.plan.model_source import PRODUCT, multiplied

_OUT, _IN = 5, 3  # so that no division into groups fits by chance


def why_kept(module: nn.Module, parent: nn.Module, name: str) -> str:
    """Return why ``module``, ``name`` in ``parent``, needs its plain weight; empty: it does not."""
    if not isinstance(module, nn.Linear) or hasattr(module, "quant_method"):  # ours were asked
        return ""
    if computes_otherwise(module):
        return f"{type(module).__name__} computes something else than x @ W^T with its weight"
    owner: Any = type(parent)
    if name in _multiplied(owner):
        return multiplied(owner.__name__)
    return ""


@lru_cache
def _multiplied(owner: type[nn.Module]) -> frozenset[str]:
    """Return the layers by whose weights the code of a class multiplies itself."""
    try:
        return frozenset(PRODUCT.findall(inspect.getsource(owner)))
    except (OSError, TypeError):  # no source to read
        return frozenset()


def computes_otherwise(module: nn.Module) -> bool:
    """Return whether ``module`` is an ``nn.Linear`` whose own forward is not x @ W^T + bias.

    >>> class Doubled(nn.Linear):
    ...     def forward(self, x):
    ...         return 2 * super().forward(x)
    >>> computes_otherwise(Doubled(8, 8)), computes_otherwise(nn.Linear(8, 8))
    (True, False)
    """
    if not isinstance(module, nn.Linear) or type(module).forward is nn.Linear.forward:
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
