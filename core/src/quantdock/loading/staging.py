"""Finishing a layer on the device that will run it, although its weights live elsewhere."""

from __future__ import annotations

import torch

from quantdock.layers import LinearBase
from quantdock.methods.quantized import QuantizedLinearMethod


def finish_on(layer: LinearBase, device: torch.device | str) -> None:
    """Finish ``layer`` on ``device`` and put it back where its tensors arrived.

    For offloaded models: tensors lie in host memory, and a kernel prepares its layout on its own
    device. All tensors of the layer move together, there and back.

    Raises:
        LoadError: a required tensor did not arrive.
    """
    method = layer.quant_method
    if not isinstance(method, QuantizedLinearMethod):
        method.process_weights_after_loading(layer)
        return
    home = method.pending.device
    method.pending.move(torch.device(device))
    method.process_weights_after_loading(layer)
    if home is not None:
        layer.to(home)
