"""What the headers of one layer get wrong: tensors missing, misshapen, mistyped or left over.

Plans, reloading and doctor say it in these words.

A layer that its config refuses for what is stored is judged by what the JSON says of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from quantdock.checkpoint.quantization_tensors import is_quantization_tensor, looks_quantized
from quantdock.config import QuantizationConfig
from quantdock.configs.kv_scales import is_kv_scale
from quantdock.formats import DTYPES
from quantdock.methods.header_faults import (
    HeaderFault,
    HeaderKind,
    shape_fault,
    slot_faults,
)
from quantdock.methods.slot import Slot
from quantdock.plan.stored_layers import StoredLayer
from quantdock.schemes import Decision, LayerFacts, Scheme

FaultKind = HeaderKind | Literal["left over"]

_ANY_SHAPE = (64, 64)  # of a weight whose first slot is asked for, the tensor of its codes
_WEIGHT, _BIAS = "weight", "bias"
_FLOATS = tuple(name for name, dtype in DTYPES.items() if dtype.floating)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFault:
    """One fault of one tensor; ``text`` names no layer, so that equal faults read alike.

    ``tensor`` is the whole name, ``why`` what makes it a fault where that is not plain.
    """

    kind: FaultKind
    layer: str
    tensor: str
    text: str
    why: str = ""


def find_faults(
    layer: StoredLayer, decision: Decision, config: QuantizationConfig, *, decodes: bool = False
) -> Iterator[StoredFault]:
    """Yield what is wrong with the tensors of one layer.

    Args:
        decision: as the layer is stored. decodes: only its weight is wanted, whose input may lack
            what its scheme needs.
    """
    facts, layout = layer.asked, layer.layout
    scheme = decision.scheme if not decision.error else _meant(facts, config)
    if scheme is None:
        yield from _of_plain(layer, decision)
        return
    shape = config.weight_shape(scheme, facts)
    if len(shape) != 2:
        yield from (_of(layer, fault) for fault in _without_shape(scheme, layer, config))
        return
    slots = [*config.slots(scheme, *shape, facts)]
    taken = {spelling for slot in slots for spelling in slot.spellings}
    if decodes:
        slots = [*config.slots(scheme.weight_only(), *shape, facts)]
    slots.append(Slot(name=_BIAS, shapes=((shape[0],),), dtypes=_FLOATS, default=0.0))
    stack = layout.stack
    stored = layout.stored if stack is None else stack.tensors
    for slot in slots if stack is None else map(stack.slot, slots):
        yield from (_of(layer, fault) for fault in slot_faults(slot, stored))
    for part in _ours(layer, looks_quantized) if not decision.error else ():
        if part not in taken:
            yield _left_over(layer, part, "nothing takes it")


def _of_plain(layer: StoredLayer, decision: Decision) -> Iterator[StoredFault]:
    """Yield what no plain layer has, whole numbers too; and tensors of other numbers of experts."""
    parts = () if decision.error else _ours(layer, is_quantization_tensor)
    for part in parts:
        yield _left_over(layer, part, "the layer is plain")
    weight = layer.layout.stored.get(_WEIGHT)
    if weight is not None and weight.dtype not in _FLOATS and not (parts or decision.error):
        name = _told(layer, _WEIGHT)
        yield _fault("dtype", layer, name, f"{name} is {weight.dtype}, and the layer is plain")
    stack = layer.layout.stack
    for name, tensor in stack.tensors.items() if stack is not None else ():
        assert stack is not None, "it was just looked at"
        if tensor.shape[:1] != (stack.number,):
            expected = str([stack.number, *tensor.shape[1:]])
            yield _of(layer, shape_fault(name, tensor, expected))


def missing(like: StoredLayer, part: str, prefix: str, why: str) -> StoredFault:
    """Return the fault of a layer at ``prefix`` that lacks what is stored for one like it."""
    name = _told(like, part)
    tensor = _whole_name(like, prefix, name)
    return StoredFault(
        kind="missing", layer=prefix, tensor=tensor, text=f"{name} is missing", why=why
    )


def misfit(layer: StoredLayer, part: str, usual: tuple[int, ...]) -> StoredFault:
    """Return the fault of a weight that has another shape than those of other experts."""
    name, tensor = _told(layer, part), layer.layout.stored[part]
    fault = shape_fault(name, tensor, f"{list(usual)} as for other experts")
    return _of(layer, fault)


def whole(name: str, text: str, why: str) -> StoredFault:
    """Return the fault of a layer or tensor that should not be there at all."""
    return StoredFault(kind="left over", layer=name, tensor=name, text=f"it is {text}", why=why)


def _without_shape(
    scheme: Scheme, layer: StoredLayer, config: QuantizationConfig
) -> Iterator[HeaderFault]:
    """Yield why no shape of the weight shows: its codes are missing, or no matrix."""
    codes, layout = config.slots(scheme, *_ANY_SHAPE, layer.asked)[0], layer.layout
    name = codes.stored_as(layout.stored)
    if name is None:
        yield HeaderFault(kind="missing", tensor=_told(layer, codes.name))
    else:
        yield shape_fault(_told(layer, name), layout.stored[name], "a matrix")


def _left_over(layer: StoredLayer, part: str, why: str) -> StoredFault:
    name = _told(layer, part)
    return _fault("left over", layer, name, f"{name} is stored, and {why}")


def _of(layer: StoredLayer, fault: HeaderFault) -> StoredFault:
    return _fault(fault.kind, layer, fault.tensor, str(fault))


def _told(layer: StoredLayer, part: str) -> str:
    """Return what the file calls a tensor of the layer, without what comes before."""
    stack = layer.layout.stack
    return part if stack is None else stack.told(part)[0]


def _meant(facts: LayerFacts, config: QuantizationConfig) -> Scheme | None:
    """Return the scheme that the JSON gives a layer whose stored tensors are refused."""
    return config.scheme_for(replace(facts, stored=None)).scheme


def _ours(layer: StoredLayer, is_meant: Callable[[str, str], bool]) -> list[str]:
    """Return the tensors, by name and dtype, that quantized layers have, and no cache."""
    prefix, stored = layer.facts.prefix, layer.layout.stored
    return [
        part
        for part, tensor in stored.items()
        if is_meant(part, tensor.dtype) and not is_kv_scale(f"{prefix}.{part}")
    ]


def _fault(kind: FaultKind, layer: StoredLayer, name: str, text: str) -> StoredFault:
    prefix = layer.facts.prefix
    return StoredFault(kind=kind, layer=prefix, tensor=_whole_name(layer, prefix, name), text=text)


def _whole_name(like: StoredLayer, prefix: str, name: str) -> str:
    """Return the whole name of a tensor that the file calls ``name`` in a layer at ``prefix``."""
    stack = like.layout.stack
    is_joined = stack is not None and stack.joint != "."
    return f"{prefix.rpartition('.')[0] if is_joined else prefix}.{name}"
