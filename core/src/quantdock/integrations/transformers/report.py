"""The final plan of a loaded model: what was decided, and what was found while loading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from quantdock.checkpoint import Checkpoint
from quantdock.checkpoint.model_facts import model_type
from quantdock.configs.kv_scales import is_kv_scale
from quantdock.integrations.transformers.found import FoundLayer
from quantdock.layers import LinearBase
from quantdock.loading.sources import Sources
from quantdock.methods.quantized import QuantizedLinearMethod
from quantdock.plan import LayerPlan, Plan
from quantdock.plan.ignore_lists import sort_entries
from quantdock.plan.messages import cache_notes, layer_warnings, model_notes
from quantdock.plan.setting import Setting
from quantdock.registry import MethodChoice
from quantdock.schemes import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What loading leaves for the report."""

    model: Any
    found: Sequence[FoundLayer]
    decisions: Mapping[str, Decision]
    setting: Setting
    sources: Sources


def final_plan(
    loaded: Loaded,
    choice: MethodChoice,
    checkpoint: Checkpoint,
    listed: Sequence[str],
    warnings: Sequence[str],
) -> Plan:
    """Return the level-3 plan; ``listed`` are the entries of ignore lists before any matched."""
    config = loaded.setting.config
    seen: set[int] = set()
    layers = tuple(_final_layer(loaded, layer, seen) for layer in loaded.found)
    ignored = sort_entries(listed, config.unmatched(), checkpoint.tensors)
    held = sum(layer.bytes_memory or 0 for layer in layers)
    unused = tuple(loaded.sources.left_over())
    notes = [
        *choice.notes,
        *model_notes(checkpoint.config, checkpoint.tensors),
        *cache_notes([name for name in unused if is_kv_scale(name)]),
    ]
    return Plan(
        level=3,
        checkpoint=str(checkpoint.folder),
        model_type=model_type(checkpoint.config),
        method=choice.name,
        method_source=choice.because,
        platform=str(choice.platform),
        described=choice.platform.described,
        dtype=loaded.setting.dtype,
        layers=layers,
        notes=(*notes, *config.notes()),
        warnings=(*warnings, *layer_warnings(layers)),
        ignore_matched=ignored.matched,
        ignore_unmatched=ignored.unmatched,
        unused=unused,
        bytes_other=num_bytes(loaded.model.parameters()) - held,
    )


def _final_layer(loaded: Loaded, layer: FoundLayer, seen: set[int]) -> LayerPlan:
    """Return one layer's plan with the bytes it really takes and the value steps it took.

    A parameter in ``seen`` (a tied head's) was counted with the layer it is shared with.
    """
    module = loaded.model.get_submodule(layer.name)
    own = [p for p in module._parameters.values() if p is not None and id(p) not in seen]
    seen.update(id(parameter) for parameter in own)
    plan = loaded.setting.plan(
        layer.facts,
        layer.n,
        layer.k,
        decision=loaded.decisions[layer.name],
        has_bias=isinstance(module, LinearBase) and module.bias is not None,
    )
    stored = loaded.sources.under(layer.facts.prefix).values()
    return replace(
        plan,
        bytes_stored=sum(entry.end - entry.start for entry in stored),
        bytes_memory=num_bytes(own),
        warnings=(*plan.warnings, *_value_steps(module)),
    )


def _value_steps(module: Any) -> tuple[str, ...]:
    method = getattr(module, "quant_method", None)
    return method.value_steps if isinstance(method, QuantizedLinearMethod) else ()


def num_bytes(parameters: Iterable[Tensor]) -> int:
    """Return the bytes of ``parameters``."""
    return sum(p.numel() * p.element_size() for p in parameters)
