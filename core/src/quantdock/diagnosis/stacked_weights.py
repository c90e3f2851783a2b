"""The weights of experts that files store in one tensor, read one after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from quantdock.checkpoint.expert_names import PARTS
from quantdock.diagnosis.case import Case, Layer
from quantdock.diagnosis.stored_weight import read_layer, read_weight
from quantdock.loading.expert_slices import find_stacked, halves
from quantdock.loading.sources import Sources
from quantdock.numerics import CanonicalWeight


def read_weights(
    case: Case, layer: Layer, sources: Sources
) -> Iterator[tuple[str, CanonicalWeight]]:
    """Yield (name, weight) of what the files hold of ``layer``: one, or those of its experts.

    Gate and up in one tensor are read apart, and have one name: files may interleave their rows.

    Raises:
        LoadError: a tensor is missing or does not fit.
        FormatError: what is stored cannot be decoded.
    """
    if layer.stored.layout.stack is None:
        yield layer.prefix, read_layer(case, layer, sources)
        return
    scheme, config = layer.stored_as.scheme, case.setting.config
    assert scheme is not None, "whoever reads a layer has looked"
    for name, prefix in _add_experts(layer, sources):
        facts = replace(layer.facts, prefix=prefix, stored=sources.stored(prefix))
        n, k = config.weight_shape(scheme, facts)
        slots = config.slots(scheme, n, k, facts)
        yield name, read_weight(config, scheme, facts, [slots], sources)


def _add_experts(layer: Layer, sources: Sources) -> Iterator[tuple[str, str]]:
    """Yield the name of each expert's weight, and the prefix of its parts in ``sources``."""
    stack = layer.stored.layout.stack
    assert stack is not None, "whoever asks has looked"
    module = layer.prefix.rpartition(".")[0]
    tensors = find_stacked(sources.under, module, (stack.weight,))
    slices = [tensor.slices(stack.number) for tensor in tensors if tensor.part != "bias"]
    parts = [tensor.part for tensor in tensors if tensor.part != "bias"]
    for expert, entries in enumerate(zip(*slices, strict=True)):
        stored = dict(zip(parts, entries, strict=True))
        own = halves(stored) if stack.halves > 1 else (stored,)
        names = PARTS[stack.weight] if stack.halves > 1 else (stack.weight,)
        for name, entries_of in zip(names, own, strict=True):
            prefix = f"{module}.{expert}.{name}"
            for part, entry in entries_of.items():
                sources.add_part(f"{prefix}.{part}", entry)
            yield f"{module}.{expert}.{stack.weight}", prefix
