"""What the headers of one layer get wrong: tensors missing, misshapen, mistyped or left over.

Plans, reloading and doctor say it in these words.

A layer that its config refuses for what is stored is judged by what the JSON says of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from quantdock.checkpoint.quantization_tensors import is_quantization_tensor
from quantdock.config import QuantizationConfig
from quantdock.configs.kv_scales import is_kv_scale
from quantdock.methods.header_faults import (
    HeaderFault,
    HeaderKind,
    shape_fault,
    slot_faults,
)
from quantdock.plan.stored_layers import Layout, StoredLayer
from quantdock.schemes import Decision, LayerFacts, Scheme, StoredTensor

FaultKind = HeaderKind | Literal["left over"]

_ANY_SHAPE = (64, 64)  # of a weight whose first slot is asked for, the tensor of its codes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFault:
    """One fault of one tensor; ``text`` names no layer, so that equal faults read alike."""

    kind: FaultKind
    layer: str
    tensor: str  # its name after the layer's
    text: str

    @property
    def name(self) -> str:
        """Return the tensor's whole name."""
        return f"{self.layer}.{self.tensor}"


def find_faults(
    stored: StoredLayer, decision: Decision, config: QuantizationConfig
) -> Iterator[StoredFault]:
    """Yield what is wrong with the tensors of one layer."""
    facts, layout = stored
    prefix = facts.prefix
    scheme = decision.scheme if not decision.error else _meant(facts, config)
    ours = [part for part, tensor in layout.stored.items() if _is_ours(prefix, part, tensor)]
    if scheme is None:
        for part in ours if not decision.error else ():
            yield _fault("left over", prefix, part, f"{part} is stored, and the layer is plain")
        return
    shape = config.weight_shape(scheme, facts)
    if not shape:
        yield from (_of(prefix, fault) for fault in _without_shape(scheme, facts, layout, config))
    if len(shape) != 2:
        return
    slots = config.slots(scheme, *shape, facts)
    for slot in slots:
        yield from (_of(prefix, fault) for fault in slot_faults(slot, layout.stored))
    taken = {spelling for slot in slots for spelling in slot.spellings}
    for part in ours if not decision.error else ():
        if part not in taken:
            yield _fault("left over", prefix, part, f"{part} is stored, and nothing takes it")


def _without_shape(
    scheme: Scheme, facts: LayerFacts, layout: Layout, config: QuantizationConfig
) -> Iterator[HeaderFault]:
    """Yield why no shape of the weight shows: its codes are missing, or no matrix."""
    codes = config.slots(scheme, *_ANY_SHAPE, facts)[0]
    name = codes.stored_as(layout.stored)
    if name is None:
        yield HeaderFault(kind="missing", tensor=codes.name)
    else:
        yield shape_fault(name, layout.stored[name], "a matrix")


def _of(layer: str, fault: HeaderFault) -> StoredFault:
    return _fault(fault.kind, layer, fault.tensor, str(fault))


def _meant(facts: LayerFacts, config: QuantizationConfig) -> Scheme | None:
    """Return the scheme that the JSON gives a layer whose stored tensors are refused."""
    return config.scheme_for(replace(facts, stored=None)).scheme


def _is_ours(prefix: str, part: str, tensor: StoredTensor) -> bool:
    """Return whether a tensor is a quantized layer's, and no scale of the KV cache."""
    return is_quantization_tensor(part, tensor.dtype) and not is_kv_scale(f"{prefix}.{part}")


def _fault(kind: FaultKind, layer: str, tensor: str, text: str) -> StoredFault:
    return StoredFault(kind=kind, layer=layer, tensor=tensor, text=text)
