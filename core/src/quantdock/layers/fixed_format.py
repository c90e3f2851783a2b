"""FixedFormat: modules whose weight keeps the dtype of its format wherever they are moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from torch import Tensor, nn


class FixedFormat(nn.Module):
    """A module with a ``quant_method``; only an unquantized weight and the bias change dtype.

    ``module.half()`` would otherwise turn codes and f32 scales into float16.
    """

    quant_method: Any  # of linear layers or of experts; it names what must keep its dtype

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the module, and what its method holds in the dtype that it has."""
        names = self.quant_method.frozen_names(self)
        frozen = {name: self._parameters.pop(name) for name in names}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, parameter in frozen.items():
            self._parameters[name] = _moved(parameter, fn)
        return self


def _moved(parameter: nn.Parameter | None, fn: Callable[[Tensor], Tensor]) -> nn.Parameter | None:
    """Return ``parameter`` where ``fn`` would put it, in the dtype it has."""
    if parameter is None or parameter.is_meta:
        return parameter
    # An empty tensor shows the target without converting a whole weight.
    device = fn(parameter.data[:0]).device if parameter.dim() else fn(parameter.data).device
    if device == parameter.device:
        return parameter
    return nn.Parameter(parameter.data.to(device), requires_grad=False)
