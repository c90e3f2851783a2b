"""The final plan of a loaded model: what was decided, and what was found while loading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from quantdock.checkpoint import Checkpoint
from quantdock.checkpoint.model_facts import model_type
from quantdock.configs.kv_scales import is_kv_scale
from quantdock.integrations.transformers.expert_report import plan_experts
from quantdock.integrations.transformers.found import FoundLayer
from quantdock.integrations.transformers.merging import Merges
from quantdock.layers import FusedMoE, LinearBase, MergedView, ParallelGroup, VocabParallelEmbedding
from quantdock.loading.sources import Sources
from quantdock.methods.cut import Cut
from quantdock.methods.quantized import QuantizedLinearMethod
from quantdock.methods.quantized_experts import QuantizedExpertsMethod
from quantdock.plan import LayerPlan, Plan
from quantdock.plan.ignore_lists import sort_entries
from quantdock.plan.messages import (
    cache_notes,
    dtype_warnings,
    lacking_warnings,
    layer_warnings,
    model_notes,
    withheld,
)
from quantdock.plan.setting import Setting
from quantdock.plan.tied_head import tied_decision
from quantdock.registry import MethodChoice
from quantdock.schemes import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What loading leaves for the report."""

    model: Any
    found: Sequence[FoundLayer]
    decisions: Mapping[str, Decision]
    attention: Sequence[LayerPlan]
    setting: Setting
    sources: Sources
    group: ParallelGroup
    merges: Merges = field(default_factory=Merges)


def final_plan(
    loaded: Loaded,
    choice: MethodChoice,
    checkpoint: Checkpoint,
    listed: Sequence[str],
    warnings: Sequence[str],
) -> Plan:
    """Return the level-3 plan; ``listed`` are the entries of ignore lists before any matched."""
    config = loaded.setting.config
    layers = tuple(_all_layers(loaded, checkpoint.config))
    ignored = sort_entries(listed, config.unmatched(), checkpoint.tensors)
    held = sum(layer.bytes_memory or 0 for layer in layers)
    unused = tuple(loaded.sources.left_over())
    notes = [
        *choice.notes,
        *model_notes(checkpoint.config, checkpoint.tensors),
        *loaded.merges.notes(),
        *cache_notes([name for name in unused if is_kv_scale(name)], loaded.setting.kv_cache),
    ]
    warnings = [*warnings, *_warnings(loaded, checkpoint), *lacking_warnings(checkpoint.tensors)]
    return Plan(
        level=3,
        checkpoint=str(checkpoint.folder),
        model_type=model_type(checkpoint.config),
        method="none" if choice.dequantize else choice.name,
        method_source=choice.because,
        platform=str(choice.platform),
        described=choice.platform.described,
        dtype=loaded.setting.dtype,
        layers=layers,
        attention=tuple(loaded.attention),
        rank=loaded.group.rank,
        ranks=loaded.group.size,
        notes=(*notes, *config.notes(), *withheld(layers, loaded.setting)),
        warnings=(*warnings, *layer_warnings((*layers, *loaded.attention), loaded.setting)),
        ignore_matched=ignored.matched,
        ignore_unmatched=ignored.unmatched,
        unused=unused,
        bytes_other=num_bytes(loaded.model.parameters()) - held,
    )


def _all_layers(loaded: Loaded, config: Mapping[str, Any]) -> Iterator[LayerPlan]:
    seen: set[int] = set()
    for layer in loaded.found:
        yield from _final_layers(loaded, layer, seen, config)


def _final_layers(
    loaded: Loaded, layer: FoundLayer, seen: set[int], config: Mapping[str, Any]
) -> Iterator[LayerPlan]:
    """Yield the rows of one layer: one, or two of experts whose w13 and w2 differ."""
    module = loaded.model.get_submodule(layer.name)
    method = getattr(module, "quant_method", None)
    if isinstance(method, QuantizedExpertsMethod):
        decision, setting = loaded.decisions[layer.name], loaded.setting
        yield from plan_experts(layer, module, method, decision, setting, loaded.sources)
    else:
        yield _final_layer(loaded, layer, seen, config)


def _final_layer(
    loaded: Loaded, layer: FoundLayer, seen: set[int], config: Mapping[str, Any]
) -> LayerPlan:
    """Return one layer's plan with the bytes it really takes and the value steps it took.

    A parameter in ``seen`` (a tied head's) was counted with the layer it is shared with.
    """
    module = loaded.model.get_submodule(layer.name)
    own = [p for p in module._parameters.values() if p is not None and id(p) not in seen]
    seen.update(id(parameter) for parameter in own)
    decision, n, k, cut = loaded.decisions[layer.name], layer.n, layer.k, _cut(module)
    if layer.facts.kind == "head" and decision.scheme is None and not own:
        decision = tied_decision(config)
    if cut is not None:
        n, k = len(cut.rows), len(cut.columns)
        if decision.scheme is not None:
            decision = replace(decision, scheme=cut.scheme(decision.scheme))
    method = getattr(module, "quant_method", None)
    selection = None
    if isinstance(method, QuantizedLinearMethod):  # stored values may have shown another scheme
        decision, selection = replace(decision, scheme=method.problem.scheme), method.selection
    plan = loaded.setting.plan(
        layer.facts,
        n,
        k,
        decision=decision,
        has_bias=isinstance(module, LinearBase | MergedView) and module.bias is not None,
        selection=selection,
    )
    stored = [loaded.sources.under(prefix).values() for prefix in layer.prefixes]
    return replace(
        plan,
        bytes_stored=sum(entry.num_bytes for entries in stored for entry in entries),
        bytes_memory=module.num_bytes if isinstance(module, MergedView) else num_bytes(own),
        merged=module.where if isinstance(module, MergedView) else "",
        shard=_shard(module, cut),
        warnings=(*plan.warnings, *_value_steps(module)),
    )


def _warnings(loaded: Loaded, checkpoint: Checkpoint) -> Iterator[str]:
    """Yield what the options of the load risk."""
    yield from dtype_warnings(checkpoint.config, loaded.setting.dtype)
    group = loaded.group
    if group.size > 1 and group.process_group is None:
        yield (
            f"rank {group.rank} of {group.size} has no process group: its layers return their part "
            "of each result"
        )


def _cut(module: Any) -> Cut | None:
    """Return which part of a layer's only shard the rank holds; None: all of it."""
    if not isinstance(module, LinearBase | VocabParallelEmbedding) or module.cuts[0].is_whole:
        return None
    return module.cuts[0]


def _shard(module: Any, cut: Cut | None) -> str:
    """Return which part of the layer the rank holds, in words."""
    if isinstance(module, FusedMoE):
        return str(module.shape)
    return "" if cut is None else str(cut)


def _value_steps(module: Any) -> tuple[str, ...]:
    method = getattr(module, "quant_method", None)
    if not isinstance(method, QuantizedLinearMethod):
        return ()
    return (*method.value_steps, *method.notes)


def num_bytes(parameters: Iterable[Tensor]) -> int:
    """Return the bytes of ``parameters``."""
    return sum(p.numel() * p.element_size() for p in parameters)
