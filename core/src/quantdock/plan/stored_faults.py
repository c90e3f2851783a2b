"""What the headers of one layer get wrong: tensors missing, misshapen, mistyped or left over.

Plans, reloading and doctor say it in these words.

A layer that its config refuses for what is stored is judged by what the JSON says of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from quantdock.checkpoint.quantization_tensors import is_quantization_tensor
from quantdock.config import QuantizationConfig
from quantdock.configs.kv_scales import is_kv_scale
from quantdock.methods.slot import Slot
from quantdock.plan.stored_layers import StoredLayer
from quantdock.schemes import Decision, LayerFacts, Scheme, StoredTensor

FaultKind = Literal["missing", "shape", "dtype", "left over"]


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
        yield _fault("missing", prefix, "weight", "weight is missing")
    if len(shape) != 2:
        return
    slots = config.slots(scheme, *shape, facts)
    for slot in slots:
        yield from slot_faults(slot, layout.stored, prefix)
    taken = {spelling for slot in slots for spelling in slot.spellings}
    for part in ours if not decision.error else ():
        if part not in taken:
            yield _fault("left over", prefix, part, f"{part} is stored, and nothing takes it")


def slot_faults(
    slot: Slot, stored: Mapping[str, StoredTensor], prefix: str
) -> Iterator[StoredFault]:
    """Yield what is wrong with the tensor that is ``stored`` for one slot."""
    name = slot.stored_as(stored)
    if name is None:
        if slot.default is None:
            also = f" (nor {', '.join(slot.aliases)})" if slot.aliases else ""
            yield _fault("missing", prefix, slot.name, f"{slot.name} is missing{also}")
        return
    tensor = stored[name]
    if tensor.dtype not in slot.dtypes:
        text = f"{name} is stored as {tensor.dtype}; {' or '.join(slot.dtypes)} expected"
        yield _fault("dtype", prefix, name, text)
    elif prod(tensor.shape) not in {prod(shape) for shape in slot.shapes}:
        text = f"{name} is {list(tensor.shape)}; {list(slot.shape)} expected"
        yield _fault("shape", prefix, name, text)


def _meant(facts: LayerFacts, config: QuantizationConfig) -> Scheme | None:
    """Return the scheme that the JSON gives a layer whose stored tensors are refused."""
    return config.scheme_for(replace(facts, stored=None)).scheme


def _is_ours(prefix: str, part: str, tensor: StoredTensor) -> bool:
    """Return whether a tensor is a quantized layer's, and no scale of the KV cache."""
    return is_quantization_tensor(part, tensor.dtype) and not is_kv_scale(f"{prefix}.{part}")


def _fault(kind: FaultKind, layer: str, tensor: str, text: str) -> StoredFault:
    return StoredFault(kind=kind, layer=layer, tensor=tensor, text=text)
