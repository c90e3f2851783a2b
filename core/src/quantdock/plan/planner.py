"""``explain``: the plan of a checkpoint, from its JSON alone or from its headers. Without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantdock.arguments import SOURCE, checked, instance_of
from quantdock.checkpoint import QuantizationBlock, find_quantization
from quantdock.checkpoint.collector import collector_paused
from quantdock.checkpoint.model_facts import model_type, num_experts
from quantdock.checkpoint.quantization_tensors import refuse_without_block
from quantdock.errors import MethodNotYetError, few
from quantdock.kernel import Policy
from quantdock.plan.attention import plan_attention_layers
from quantdock.plan.ignore_lists import Ignored, entry_text, sort_entries
from quantdock.plan.kv_cache import with_kv_cache
from quantdock.plan.layer_table import decide_layers, plan_layers
from quantdock.plan.messages import (
    cache_notes,
    dtype_warnings,
    layer_warnings,
    model_notes,
    tensor_warnings,
    unused_requirement,
    withheld,
)
from quantdock.plan.model_source import kept_layers
from quantdock.plan.plan import LayerPlan, Plan
from quantdock.plan.rules import plan_rules
from quantdock.plan.setting import (
    AUTO,
    Setting,
    bind_config,
    choose_dtype,
    make_setting,
    refuse_nothing,
)
from quantdock.plan.source import Source, read_source
from quantdock.plan.stored_layers import StoredModel, stored_model
from quantdock.plan.tied_head import plan_tied_head
from quantdock.platform import Platform
from quantdock.registry import MethodChoice, choose_method, get_platform


@checked(source=SOURCE, policy=instance_of("a Policy, or None", Policy, type(None)))
@collector_paused()
def explain(
    source: str | Path | Mapping[str, Any],
    platform: str | Platform | None = None,
    quantization: str | None = None,
    policy: Policy | None = None,
    ignore: Sequence[str] = (),
    choices: Mapping[str, str] | None = None,
    kv_cache: str = "auto",
    dtype: str = AUTO,
) -> Plan:
    """Return what each layer of a checkpoint would run on a platform, and why.

    Args:
        source: a checkpoint folder, a config.json, or its content. JSON alone gives rules
            (level 1), a folder with weights gives layers (level 2).
        platform: such as "cuda:sm_90"; None: the best one of this machine.
        quantization: as for ``load``; None: what the checkpoint says.
        policy: what may be substituted, and kernels to prefer or require.
        ignore: patterns of layers that online quantization leaves alone.
        choices: pattern -> online method for the layers it matches.
        kv_cache, dtype: as for ``load``.
    Raises:
        QuantDockError: the checkpoint is damaged, or nothing would be quantized as asked. A method
            that is known and not supported is no error: ``Plan.unsupported`` says so.
    """
    read, policy = read_source(source), policy or Policy()
    block = find_quantization(read.config, read.folder)
    if block is None and read.checkpoint is not None:
        refuse_without_block(read.checkpoint.tensors)
    try:
        choice = choose_method(quantization, block, platform)
        config = bind_config(choice, policy, ignore, choices)
    except MethodNotYetError as error:
        return _unsupported(read, block, get_platform(platform), error)
    computed = choose_dtype(read.config, choice.platform, dtype)
    setting = make_setting(config, choice, block, computed)
    setting = replace(setting, kept=kept_layers(model_type(read.config)))
    tensors = read.checkpoint.tensors if read.checkpoint else ()
    setting = with_kv_cache(setting, kv_cache, read.config, tensors)
    plan = _plan(read, block, choice, setting)
    if plan.level > 1:
        refuse_nothing(choice, [(layer.decision, layer.because) for layer in plan.layers], policy)
    return plan


def _plan(
    read: Source, block: QuantizationBlock | None, choice: MethodChoice, setting: Setting
) -> Plan:
    listed = setting.config.unmatched()
    none: tuple[LayerPlan, ...] = ()
    layers, rules, attention, model, ignored = none, none, none, StoredModel(), Ignored()
    notes, warnings = [*choice.notes], _config_warnings(read, block, setting)
    if read.checkpoint is not None:
        tensors = read.checkpoint.tensors
        model = stored_model(tensors, num_experts(read.config))
        decided = decide_layers(model, setting, read.config)
        layers = plan_layers(model, setting, decided)
        layers = (*layers, *plan_tied_head(model, setting, read.config))
        attention = plan_attention_layers(model, setting.kv_cache, setting.dtype, setting.kv_shape)
        ignored = sort_entries(listed, setting.config.unmatched(), tensors)
        unused = () if setting.kv_cache.from_file else model.cache_scales
        notes += [*model_notes(read.config, tensors), *cache_notes(unused, setting.kv_cache)]
        warnings += tensor_warnings(read.config, tensors, layers, decided.faults)
    elif block is not None or not read.not_yet:
        rules = plan_rules(read.config, setting, listed)
        notes += [*_entries_note(listed), *unused_requirement(rules, setting)]
    return Plan(
        level=1 if read.checkpoint is None else 2,
        checkpoint=read.name,
        model_type=model_type(read.config),
        method="none" if choice.dequantize else choice.name,
        method_source=choice.because,
        platform=str(choice.platform),
        described=choice.platform.described,
        dtype=setting.dtype,
        layers=layers,
        rules=rules,
        attention=attention,
        notes=(*notes, *setting.config.notes(), *withheld(layers or rules, setting)),
        warnings=(*warnings, *layer_warnings((*(layers or rules), *attention), setting)),
        ignore_matched=ignored.matched,
        ignore_unmatched=ignored.unmatched,
        bytes_other=model.bytes_other,
        unsupported=read.not_yet or None,
    )


def _config_warnings(read: Source, block: QuantizationBlock | None, setting: Setting) -> list[str]:
    """Return what the files give to think about before any layer is looked at."""
    return [
        *(read.checkpoint.warnings if read.checkpoint else ()),
        *(block.warnings if block else ()),
        *dtype_warnings(read.config, setting.dtype),
    ]


def _unsupported(
    read: Source,
    block: QuantizationBlock | None,
    platform: Platform,
    error: MethodNotYetError,
) -> Plan:
    """Return the plan of a checkpoint whose method is known and cannot be run by this release."""
    return Plan(
        level=1,
        checkpoint=read.name,
        model_type=model_type(read.config),
        method=error.method,
        method_source=block.source if block else "the user",
        platform=str(platform),
        described=platform.described,
        dtype=choose_dtype(read.config, platform),
        notes=tuple(why.removeprefix("it is: ") for why in error.why[:1]),
        warnings=block.warnings if block else (),
        unsupported=f"known, not yet: dialect {error.method}. {error.todo}",
    )


def _entries_note(listed: Sequence[str]) -> list[str]:
    """Return a note on the lists of layers that are treated otherwise: no name was matched yet."""
    if not listed:
        return []
    texts = [entry_text(entry) for entry in listed]
    return [f"layers that are listed to be treated otherwise: {few(texts, 3)}"]
