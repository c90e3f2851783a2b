"""A layer as a file stores it: headers, slots and decoding in the order of a load."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from quantdock.config import QuantizationConfig
from quantdock.methods.slot import Slot
from quantdock.numerics.canonical import CanonicalWeight
from quantdock.schemes import LayerFacts, StoredTensor

PREFIX = "model.layers.0.mlp.up_proj"


def facts_of(tensors: Mapping[str, Tensor], prefix: str = PREFIX) -> LayerFacts:
    """Return the facts of a layer under which ``tensors`` are stored."""
    stored = {
        name: StoredTensor(dtype=str(t.dtype).removeprefix("torch."), shape=tuple(t.shape))
        for name, t in tensors.items()
    }
    return LayerFacts(prefix=prefix, stored=stored)


def decode(config: QuantizationConfig, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
    """Return the weight of a layer whose file stores ``tensors``, all of which have a slot."""
    facts = facts_of(tensors)
    decision = config.scheme_for(facts)
    assert decision.scheme is not None, decision.because
    slots = config.slots(decision.scheme, *config.weight_shape(decision.scheme, facts), facts)
    return config.decode(decision.scheme, [fill(slots, tensors)], facts)


def fill(slots: tuple[Slot, ...], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by slot, as loading does."""
    by_name = {slot.name: slot for slot in slots}
    assert tensors.keys() <= by_name.keys()
    for name, tensor in tensors.items():
        assert str(tensor.dtype).removeprefix("torch.") in by_name[name].dtypes
        assert tuple(tensor.shape) in by_name[name].shapes
    missing = [s.name for s in slots if s.default is None and s.name not in tensors]
    assert not missing
    return dict(tensors)
