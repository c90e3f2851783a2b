"""The sizes that config.json gives the model, beside those of the stored tensors.

transformers builds the model without memory; its names and sizes are the yardstick.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantdock.checkpoint.model_facts import is_tied
from quantdock.diagnosis.case import Case, Layer
from quantdock.integrations.transformers.dense_experts import bias_sources, is_bias
from quantdock.integrations.transformers.found import FoundLayer, find_layers
from quantdock.integrations.transformers.names import NameMap, map_names
from quantdock.integrations.transformers.skeleton import build_skeleton, read_model_config
from quantdock.loading.sources import Sources
from quantdock.methods.experts import ExpertFacts
from quantdock.methods.header_faults import HeaderFault, slot_faults
from quantdock.numerics import torch_dtype

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """How the stored tensors fit the model of config.json.

    Attributes:
        misfits: (what is wrong, tensor) for each tensor of another size than the model's.
        missing: tensors of the model that no file holds.
        ways: checkpoint prefix -> how the model's authors divide the layer among ranks.
    """

    misfits: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    ways: Mapping[str, str]


def compare_sizes(case: Case) -> ModelSizes:
    """Return how the checkpoint fits its own config.json.

    Raises:
        CheckpointError: transformers does not know the model.
    """
    trusted = case.options.trust_remote_code
    hf_config = read_model_config(case.checkpoint.folder, trusted)
    model = build_skeleton(hf_config, torch_dtype(case.dtype), trusted)
    tensors = case.checkpoint.tensors
    names, sources = map_names(model, tensors), Sources(tensors)
    found = find_layers(model, names, sources)
    layers = {layer.prefix: layer for layer in case.layers}
    faulty = {fault.layer for fault in case.faults}
    coded = {
        f"{place.name}.weight"
        for place in found
        if (layer := layers.get(place.facts.prefix)) and layer.stored.layout.is_quantized
    }
    misfits = [
        (str(fault), f"{layer.prefix}.{fault.tensor}")
        for place in found
        if (layer := layers.get(place.facts.prefix)) and place.facts.prefix not in faulty
        for fault in _coded_misfits(place, layer, case)
    ]
    plain = [full for full in model.state_dict() if full not in coded]
    # Whose weights were found in some tool's form, expert by expert or stacked.
    experts = {place.name: place.experts for place in found if place.experts}
    wanted = [full for full in plain if full.rpartition(".")[0] not in experts]
    biases = _missing_biases(plain, experts, sources)
    return ModelSizes(
        misfits=(*misfits, *_plain_misfits(model, plain, names, case)),
        missing=(*_missing(model, wanted, names, case), *biases),
        ways=_ways(model, found),
    )


def _missing_biases(
    plain: list[str], experts: Mapping[str, Sequence[ExpertFacts]], sources: Sources
) -> Iterator[str]:
    """Yield biases of experts that no file holds, in one tensor for all or beside each weight."""
    for full in plain:
        name, _, last = full.rpartition(".")
        if name not in experts or not is_bias(last):
            continue
        stored = bias_sources(last, experts[name])
        lost = [source for source in stored if sources.entry(source) is None]
        yield from lost if len(lost) < len(stored) else [full]


def _coded_misfits(place: FoundLayer, layer: Layer, case: Case) -> Iterator[HeaderFault]:
    """Yield what of a quantized layer has another size than the model's."""
    scheme = layer.decision.scheme
    if scheme is None or place.n is None or place.k is None or not layer.stored.layout.is_quantized:
        return
    slots = case.setting.config.slots(scheme, place.n, place.k, layer.facts)
    for slot in slots:
        yield from slot_faults(slot, layer.stored.layout.stored)


def _plain_misfits(
    model: Any, plain: list[str], names: NameMap, case: Case
) -> Iterator[tuple[str, str]]:
    sizes = {full: tuple(tensor.shape) for full, tensor in model.state_dict().items()}
    for full in plain:
        source = names.tensors.get(full)
        if source is None:
            continue
        stored = case.checkpoint.tensors[source].shape
        if stored != sizes[full]:
            last = source.rpartition(".")[2]
            yield f"{last} is {list(stored)}, not {list(sizes[full])}", source


def _missing(model: Any, plain: list[str], names: NameMap, case: Case) -> Iterator[str]:
    """Yield tensors that the model has and the files have not; a tied head's is no such."""
    tied = set(model.all_tied_weights_keys)
    head = model.get_output_embeddings()
    if is_tied(case.config) is None and head is not None:
        tied |= {f"{name}.weight" for name, module in model.named_modules() if module is head}
    for full in plain:
        if full not in names.tensors and full not in names.conversions and full not in tied:
            yield full


def _ways(model: Any, found: list[FoundLayer]) -> dict[str, str]:
    plan = getattr(model, "tp_plan", None) or {}
    ways = ((place.facts.prefix, plan.get(_NUMBER.sub("*", place.name))) for place in found)
    return {prefix: way for prefix, way in ways if way}
