"""``quantdock.load``: a checkpoint in, a transformers model ready for ``generate`` out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from quantdock.checkpoint import (
    Checkpoint,
    QuantizationBlock,
    find_quantization,
    open_checkpoint,
)
from quantdock.checkpoint.quantization_tensors import refuse_without_block
from quantdock.integrations.transformers.dtypes import choose_torch_dtype
from quantdock.integrations.transformers.found import find_layers
from quantdock.integrations.transformers.names import map_names
from quantdock.integrations.transformers.place import choose_place, torch_device
from quantdock.integrations.transformers.report import Loaded, final_plan
from quantdock.integrations.transformers.saving import refuse_saving
from quantdock.integrations.transformers.skeleton import (
    build_skeleton,
    keep_in_float32,
    read_model_config,
    restore_computed_buffers,
)
from quantdock.integrations.transformers.swap import decide_layers, swap_layers
from quantdock.integrations.transformers.tying import require_complete, tie
from quantdock.integrations.transformers.weights import Streamer
from quantdock.kernel import Policy
from quantdock.loading.sources import Sources
from quantdock.numerics.dtypes import dtype_name
from quantdock.plan.setting import Setting, bind_config
from quantdock.platform import Platform
from quantdock.registry import MethodChoice, choose_method

Tracker = Callable[[Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a user may ask of ``load`` besides the path; see there."""

    quantization: str | None = None
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    platform: str | Platform | None = None
    policy: Policy = field(default_factory=Policy)
    ignore: Sequence[str] = ()
    choices: Mapping[str, str] | None = None
    trust_remote_code: bool = False


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
    ignore: Sequence[str] = (),
    choices: Mapping[str, str] | None = None,
    trust_remote_code: bool = False,
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
        ignore: patterns of layers that online quantization leaves as they are.
        choices: pattern -> online shorthand, for layers to treat otherwise.
        track: wraps the list of modules while they load, to show progress.
    Raises:
        QuantDockError: the text says what is wrong, why, and what to do.
    """
    policy = Policy(exact=exact, prefer=prefer, require=require, allow_reference=allow_reference)
    options = Options(
        quantization=quantization,
        device=device,
        dtype=dtype,
        platform=platform,
        policy=policy,
        ignore=ignore,
        choices=choices,
        trust_remote_code=trust_remote_code,
    )
    return _load(open_checkpoint(path), options, track)


@torch.no_grad()
def _load(checkpoint: Checkpoint, options: Options, track: Tracker) -> Any:
    block = find_quantization(checkpoint.config, checkpoint.folder)
    if block is None:
        refuse_without_block(checkpoint.tensors)
    platform = choose_place(options.device, options.platform)
    choice = choose_method(options.quantization, block, platform)
    device = torch_device(options.device, choice.platform)
    dtype = choose_torch_dtype(options.dtype, checkpoint.config, choice.platform)
    setting = _setting(choice, options, block, dtype)
    listed = setting.config.unmatched()

    hf_config = read_model_config(checkpoint.folder, options.trust_remote_code)
    model = build_skeleton(hf_config, dtype, options.trust_remote_code)
    sources = Sources(checkpoint.tensors)
    names = map_names(model, checkpoint.tensors)
    restore_computed_buffers(model, device)
    found = find_layers(model, names, sources)
    decisions = decide_layers(found, setting, choice)
    swap_layers(model, found, decisions, setting.config, dtype)
    streamer = Streamer(
        model=model,
        names=names,
        sources=sources,
        dtype=dtype,
        device=device,
        float32_parts=keep_in_float32(model, dtype),
        dense=setting.config if choice.dequantize else None,
    )
    streamer.run(track)
    warnings = (*(block.warnings if block else ()), *_finish(model, streamer, checkpoint))
    if any(decision.scheme for decision in decisions.values()):
        refuse_saving(model, str(checkpoint.folder))
    loaded = Loaded(model=model, found=found, decisions=decisions, setting=setting, sources=sources)
    model.quantdock_plan = final_plan(loaded, choice, checkpoint, listed, warnings)
    return model


def _setting(
    choice: MethodChoice, options: Options, block: QuantizationBlock | None, dtype: torch.dtype
) -> Setting:
    """Return what every layer is decided with."""
    config = bind_config(choice, options.policy, options.ignore, options.choices)
    assert config.dispatch is not None, "bind_config ties it to the platform"
    return Setting(
        config=config,
        dispatch=config.dispatch,
        dtype=dtype_name(dtype),
        scope=block.scope if block else "",
        decodes=choice.dequantize,
    )


def _finish(model: Any, streamer: Streamer, checkpoint: Checkpoint) -> list[str]:
    """Tie, check that nothing is missing or left over, and return warnings."""
    streamer.sources.memory.give_back()
    missing, warnings = tie(model, streamer.missing, checkpoint.config)
    require_complete(missing)
    layers = streamer.names.layers
    built = {layers[name] for name, _ in model.named_modules() if name in layers}
    streamer.sources.check_left_over(built)
    _adopt_generation_config(model, checkpoint.folder)
    return [*checkpoint.warnings, *warnings]


def _adopt_generation_config(model: Any, folder: Path) -> None:
    """Take the folder's generation settings, as transformers' own loading does."""
    from transformers import GenerationConfig

    if (folder / "generation_config.json").is_file() and model.can_generate():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    model.config._name_or_path = str(folder)
