"""From files into one quantized layer, or into the dense weight it stands for."""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock.config import QuantizationConfig
from quantdock.errors import QuantDockError
from quantdock.layers import LinearBase
from quantdock.loading.sources import Sources
from quantdock.methods.pending import PendingWeights
from quantdock.methods.quantized import QuantizedLinearMethod
from quantdock.schemes import LayerFacts, Scheme


def fill_layer(layer: LinearBase, sources: Sources, device: torch.device) -> None:
    """Read the slots of a one-shard layer, finish it on ``device`` and free what was read.

    An unquantized layer has no slots; its weight is read like any plain tensor.

    Raises:
        LoadError: a required tensor is missing, or one has a wrong shape or dtype.
    """
    method = layer.quant_method
    if not isinstance(method, QuantizedLinearMethod):
        return
    try:
        _gather(method.pending, layer.facts.prefix, sources, device)
        method.process_weights_after_loading(layer)
    except QuantDockError:
        method.pending.discard()
        raise


def missing_tensors(layer: LinearBase, sources: Sources) -> list[str]:
    """Return the tensors that a one-shard layer needs and no file stores, by their usual names."""
    method, prefix = layer.quant_method, layer.facts.prefix
    if not isinstance(method, QuantizedLinearMethod):
        return []
    under = sources.under(prefix)
    return [
        f"{prefix}.{slot.name}"
        for slot in method.pending.slots[0]
        if slot.default is None and slot.stored_as(under) is None
    ]


def _gather(pending: PendingWeights, prefix: str, sources: Sources, device: torch.device) -> None:
    """Read every slot of ``pending`` that the file stores, under whichever spelling."""
    under = sources.under(prefix)
    for slot in pending.slots[0]:
        spelling = slot.stored_as(under)
        if spelling is None:
            continue
        region = pending.parts[0].get(slot.name, ())
        if region and under[spelling].shape == slot.shape:
            part = sources.read(f"{prefix}.{spelling}", device, region)
            pending.add_part(slot.name, part)
        else:
            pending.add(slot.name, sources.read(f"{prefix}.{spelling}", device))


def read_dense(
    config: QuantizationConfig,
    scheme: Scheme,
    facts: LayerFacts,
    sources: Sources,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Return the dense weight [N, K] that the tensors under ``facts.prefix`` stand for."""
    n, k = sources.under(facts.prefix)["weight"].shape
    slots = config.slots(scheme, n, k, facts)
    pending = PendingWeights(facts.prefix, [slots])
    _gather(pending, facts.prefix, sources, device)
    return config.decode(scheme, pending.take(), facts).dequantize(dtype)
