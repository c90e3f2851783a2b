"""``quantdock.load``: a checkpoint in, a transformers model ready for ``generate`` out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from quantdock.arguments import checked, instance_of
from quantdock.checkpoint import (
    Checkpoint,
    find_quantization,
    open_checkpoint,
)
from quantdock.checkpoint.model_facts import has_experts
from quantdock.checkpoint.quantization_tensors import refuse_without_block
from quantdock.integrations.transformers.dtypes import choose_torch_dtype
from quantdock.integrations.transformers.experts import experts_left
from quantdock.integrations.transformers.found import find_layers
from quantdock.integrations.transformers.kv_cache import prepare_kv_cache
from quantdock.integrations.transformers.merging import merge_layers
from quantdock.integrations.transformers.names import map_names
from quantdock.integrations.transformers.place import choose_place, torch_device
from quantdock.integrations.transformers.recipe import Options, Recipe
from quantdock.integrations.transformers.report import Loaded, final_plan
from quantdock.integrations.transformers.saving import give_saving
from quantdock.integrations.transformers.sharding import plan_shards
from quantdock.integrations.transformers.skeleton import (
    adopt_generation_config,
    build_skeleton,
    keep_in_float32,
    read_model_config,
    restore_computed_buffers,
)
from quantdock.integrations.transformers.swap import decide_layers, swap_layers
from quantdock.integrations.transformers.tying import require_complete, tie
from quantdock.integrations.transformers.unread import require_all_read
from quantdock.integrations.transformers.weights import Streamer
from quantdock.kernel import Policy
from quantdock.layers import ParallelGroup
from quantdock.loading.sources import Sources
from quantdock.numerics.dtypes import dtype_name, torch_dtype
from quantdock.plan.kv_cache import with_kv_cache
from quantdock.plan.setting import Setting, bind_config, make_setting
from quantdock.platform import Platform
from quantdock.registry import MethodChoice, choose_method

Tracker = Callable[[Iterable[Any]], Iterable[Any]]


@checked(tp=instance_of("a ParallelGroup (ParallelGroup.of()), or None", ParallelGroup, type(None)))
def load(
    path: str | Path,
    quantization: str | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    *,
    platform: str | Platform | None = None,
    exact: bool = False,
    prefer: str | None = None,
    require: str | None = None,
    allow_reference: bool = False,
    batch_invariant: bool = False,
    ignore: Sequence[str] = (),
    choices: Mapping[str, str] | None = None,
    kv_cache: str = "auto",
    merge: bool = False,
    tp: ParallelGroup | None = None,
    expert_parallel: bool = False,
    trust_remote_code: bool = False,
    lenient: bool = False,
    track: Tracker = iter,
) -> Any:
    """Return the transformers model of the checkpoint folder ``path``, its layers quantized.

    The final plan, with every decision and its reason, is ``model.quantdock_plan``.

    Args:
        quantization: a method name; None: what the checkpoint says; "none": no quantization (a
            quantized checkpoint is decoded to ``dtype``).
        device: "auto", or a torch device such as "cpu" or "cuda:0".
        dtype: of activations and unquantized weights; "auto": the checkpoint's.
        platform: name of the platform; None: the best one whose device is ``device``.
        exact: refuse to run another scheme than the checkpoint's.
        prefer: kernel to take where it can run. require: kernel to take or fail.
        allow_reference: let plain-torch kernels run on an accelerator.
        batch_invariant: no row of a quantized layer's result depends on the rows beside it, to the
            bit; kernels that cannot promise it compute one row after the other. Attention and
            unquantized layers are torch's, which promises nothing.
        ignore: patterns of layers that online quantization leaves as they are.
        choices: pattern -> online shorthand, for layers to treat otherwise.
        kv_cache: how keys and values are kept. "auto": as the checkpoint asks; "none": in
            ``dtype``; "fp8", "fp8_e5m2", "int8": in these, with the scales that the checkpoint
            stores for them, else with one for each token and head; "fp4": with one for 16 numbers.
        merge: let q, k and v, and gate and up, share one set of kernel tensors each; the first
            that is called computes for all. The plan says where that cannot be.
        tp: the ranks that divide the model, of which this process is one; None: it is alone.
        expert_parallel: each rank holds some experts whole, instead of some features of all; so it
            is in any case where the plan of the model's authors says nothing of its experts.
        lenient: take scales that are NaN, infinite or negative, to look at a damaged checkpoint.
        track: wraps the list of modules while they load, to show progress.
    Raises:
        QuantDockError: the text says what is wrong, why, and what to do.
    """
    policy = Policy(exact=exact, prefer=prefer, require=require, batch_invariant=batch_invariant)
    policy = replace(policy, allow_reference=allow_reference)
    options = Options(
        quantization=quantization,
        device=device,
        dtype=dtype,
        platform=platform,
        policy=policy,
        ignore=ignore,
        choices=choices,
        kv_cache=kv_cache,
        merge=merge,
        tp=tp or ParallelGroup(),
        expert_parallel=expert_parallel,
        trust_remote_code=trust_remote_code,
        lenient=lenient,
    )
    return _load(open_checkpoint(path), options, track)


@torch.no_grad()
def _load(checkpoint: Checkpoint, options: Options, track: Tracker) -> Any:
    choice, setting, warnings = _settle(checkpoint, options)
    config, listed = setting.config, setting.config.unmatched()
    device = torch_device(options.device, choice.platform)
    dtype = torch_dtype(setting.dtype)
    model = _skeleton(checkpoint, options, dtype)
    sources = Sources(checkpoint.tensors)
    names = map_names(model, checkpoint.tensors)
    restore_computed_buffers(model, device)
    found = find_layers(model, names, sources)
    decisions = decide_layers(found, setting, choice, options.policy)
    shards = plan_shards(model, found, decisions, options.tp, options.expert_parallel)
    swap_layers(model, found, decisions, config, dtype, shards, options.tp)
    merges = merge_layers(model, found, config, options)
    recipe = Recipe(
        options=options,
        platform=choice.platform,
        device=device,
        dtype=dtype,
        float32_parts=keep_in_float32(model, dtype),
    )
    streamer = recipe.streamer(model, names, sources, found, config, is_dense=choice.dequantize)
    streamer.run(track)
    attention = prepare_kv_cache(model, names, sources, setting)()
    warnings += (*experts_left(found, setting), *_finish(model, streamer, checkpoint))
    if any(decision.scheme for decision in decisions.values()) or shards:
        give_saving(model, options.tp.size)
    loaded = Loaded(
        model=model,
        found=found,
        decisions=decisions,
        attention=attention,
        setting=setting,
        sources=sources,
        group=options.tp,
        merges=merges,
    )
    model.quantdock_recipe = recipe
    model.quantdock_plan = final_plan(loaded, choice, checkpoint, listed, warnings)
    return model


def _settle(
    checkpoint: Checkpoint, options: Options
) -> tuple[MethodChoice, Setting, tuple[str, ...]]:
    """Return what is chosen before there is a model, and what the block warns of."""
    block = find_quantization(checkpoint.config, checkpoint.folder)
    if block is None:
        refuse_without_block(checkpoint.tensors)
    platform = choose_place(options.device, options.platform)
    choice = choose_method(options.quantization, block, platform)
    dtype = choose_torch_dtype(options.dtype, checkpoint.config, choice.platform)
    config = bind_config(choice, options.policy, options.ignore, options.choices)
    setting = make_setting(config, choice, block, dtype_name(dtype))
    setting = with_kv_cache(setting, options.kv_cache, checkpoint.config, checkpoint.tensors)
    idle = _without_effect(options, checkpoint)
    return choice, setting, (*(block.warnings if block else ()), *idle)


def _without_effect(options: Options, checkpoint: Checkpoint) -> Iterator[str]:
    """Yield which options change nothing here, and why."""
    if options.expert_parallel and options.tp.size == 1:
        yield "expert_parallel has no effect: one rank holds the whole model"
    elif options.expert_parallel and not has_experts(checkpoint.config):
        yield "expert_parallel has no effect: config.json tells of no experts"


def _skeleton(checkpoint: Checkpoint, options: Options, dtype: torch.dtype) -> Any:
    hf_config = read_model_config(checkpoint.folder, options.trust_remote_code)
    model = build_skeleton(hf_config, dtype, options.trust_remote_code)
    adopt_generation_config(model, checkpoint.folder)
    return model


def _finish(model: Any, streamer: Streamer, checkpoint: Checkpoint) -> list[str]:
    """Tie, check that nothing is missing or left over, and return warnings."""
    streamer.sources.memory.give_back()
    missing, warnings = tie(model, streamer.missing, checkpoint.config)
    require_complete(list(missing) or _without_memory(model))
    require_all_read(streamer)
    return [*checkpoint.warnings, *warnings]


def _without_memory(model: Any) -> list[str]:
    """Return the tensors that nothing has filled, which must never be computed with."""
    named = chain(model.named_parameters(), model.named_buffers())
    return [name for name, tensor in named if tensor.is_meta]
