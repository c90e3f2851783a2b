"""``layer.weight`` of layers whose kernel has its own name for the codes."""

from __future__ import annotations

from typing import Any

from torch import nn


class MainTensor(nn.Module):
    """A module whose ``weight`` is the parameter that its method names.

    Adapters, and code that ties weights, ask it for device and dtype. Codes have the dtype of
    their storage, whole numbers or 8-bit floats, and any shape; never is there a dense copy.
    """

    quant_method: Any

    @property
    def weight(self) -> nn.Parameter:
        """Return the parameter, still without memory before the layer is filled."""
        name = self.quant_method.main_name
        parameter = self._parameters.get(name)
        if parameter is None:
            raise AttributeError(f"{type(self).__name__} has no {name}: it is not built yet")
        return parameter
