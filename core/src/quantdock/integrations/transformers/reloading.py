"""``quantdock.reload``: other weights into a loaded model, in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from quantdock.arguments import checked
from quantdock.checkpoint import Checkpoint, find_quantization, open_checkpoint
from quantdock.checkpoint.header import TensorEntry
from quantdock.errors import LoadError, MismatchError
from quantdock.integrations.transformers.all_or_none import all_or_none
from quantdock.integrations.transformers.found import find_layers
from quantdock.integrations.transformers.kv_cache import prepare_kv_cache, require_same_kv_cache
from quantdock.integrations.transformers.names import NameMap, map_names
from quantdock.integrations.transformers.recipe import Recipe
from quantdock.integrations.transformers.swap import decide_layers
from quantdock.integrations.transformers.tying import require_complete, shared_names
from quantdock.integrations.transformers.unread import require_all_read
from quantdock.integrations.transformers.weights import Filled, Streamer, own_names, part_of
from quantdock.layers import LinearBase, MergedStore
from quantdock.loading.fill import shards_of
from quantdock.loading.sources import Sources
from quantdock.methods.header_faults import slot_faults
from quantdock.methods.quantized import QuantizedLinearMethod
from quantdock.numerics.dtypes import dtype_name
from quantdock.plan.kv_cache import with_kv_cache
from quantdock.plan.setting import bind_config, make_setting
from quantdock.registry import choose_method


@checked()
def reload(
    model: Any, path: str | Path, track: Callable[[Iterable[Any]], Iterable[Any]] = iter
) -> None:
    """Read the weights of the checkpoint ``path`` into ``model``, which ``load`` returned.

    Tensors keep their addresses, so captured graphs stay valid, and the result equals a first
    load bit for bit. Everything is read, decoded and checked before the first byte is written, a
    layer at a time, and then read again: this takes about twice the time of loading and no more
    memory. Whatever is wrong with the checkpoint, the model keeps the weights it had.

    Args:
        track: wraps the list of modules, once while they are checked and once while written.
    Raises:
        MismatchError: the checkpoint's layers have other schemes than the model's.
        LoadError: tensors are missing, have other shapes or impossible values; the model is
            unchanged, on every rank. If the files fail between the two readings it is not, and
            the text says so.
    """
    recipe: Recipe | None = getattr(model, "quantdock_recipe", None)
    if recipe is None:
        raise MismatchError(
            "This model was not loaded by quantdock.load.",
            why=["reloading needs to know what its layers were made from"],
            todo="Load it with quantdock.load, then reload.",
        )
    with torch.no_grad():
        with all_or_none(recipe.options.tp, recipe.device):
            write = _checked(model, open_checkpoint(path), recipe, track)
        try:
            write()
        except Exception as error:
            raise LoadError(
                "The reload stopped half-way: some layers have the new weights, some the old.",
                why=[f"{type(error).__name__}: {error}"],
                todo="Reload a checkpoint again, this one or the last; until then do not use it.",
            ) from error


def _checked(
    model: Any,
    checkpoint: Checkpoint,
    recipe: Recipe,
    track: Callable[[Iterable[Any]], Iterable[Any]],
) -> Callable[[], None]:
    """Check all of ``checkpoint`` and return what writes it into ``model``."""
    options = recipe.options
    block = find_quantization(checkpoint.config, checkpoint.folder)
    choice = choose_method(options.quantization, block, recipe.platform)
    config = bind_config(choice, options.policy, options.ignore, options.choices)
    setting = make_setting(config, choice, block, dtype_name(recipe.dtype))
    setting = with_kv_cache(setting, options.kv_cache, checkpoint.config, checkpoint.tensors)
    sources = Sources(checkpoint.tensors)
    names = map_names(model, checkpoint.tensors)
    found = find_layers(model, names, sources)
    decisions = decide_layers(found, setting, choice, options.policy)
    _require_same_schemes(model, {name: d.scheme for name, d in decisions.items()})
    require_same_kv_cache(model, setting)
    _require_headers(model, names, sources, checkpoint)
    as_loaded = partial(
        recipe.streamer, model, names, sources, found, config, is_dense=choice.dequantize
    )
    check, fill = (as_loaded(in_place=True, checks_only=only) for only in (True, False))
    check.run(track)
    sources.memory.give_back()
    _require_all(check)
    give_kv_cache = prepare_kv_cache(model, names, sources, setting)

    def write() -> None:
        give_kv_cache()
        fill.run(track)
        sources.memory.give_back()

    return write


def _require_all(check: Streamer) -> None:
    """Refuse what a first load would: tensors that nothing holds, or that nothing takes."""
    shared = shared_names(check.model)
    require_complete([name for name in check.missing if name not in shared])
    _require_equal(shared, check)
    require_all_read(check)


def _require_equal(shared: Mapping[str, str], check: Streamer) -> None:
    """Refuse two different tensors for what is one in the model."""
    for pair in shared.items():
        stored = [check.names.tensors.get(name, "") for name in pair]
        if any(name not in check.sources.tensors for name in stored):
            continue
        first, second = (check.sources.read(name, check.device) for name in stored)
        if not torch.equal(first, second):
            raise MismatchError(
                f"The checkpoint stores {stored[0]} and {stored[1]}, which differ.",
                why=["the loaded model has one tensor for both"],
                todo="Load the checkpoint with quantdock.load instead.",
            )


def _require_headers(model: Any, names: NameMap, sources: Sources, checkpoint: Checkpoint) -> None:
    if problems := list(_header_problems(model, names, sources)):
        more = [f"and {len(problems) - 8} more"] if len(problems) > 8 else []
        raise LoadError(
            f"{checkpoint.folder} does not fit the loaded model.",
            why=[*problems[:8], *more],
            todo="Reload a checkpoint of the same model and quantization.",
        )


def _require_same_schemes(model: Any, schemes: dict[str, Any]) -> None:
    """Refuse layers whose scheme is another than the one they were built for."""
    other = []
    for name, scheme in schemes.items():
        method = getattr(model.get_submodule(name), "quant_method", None)
        built = getattr(method, "scheme", None)
        if built != scheme:
            other.append(f"{name}: {built or 'unquantized'}, now {scheme or 'unquantized'}")
    if other:
        raise MismatchError(
            f"{len(other)} layers have another scheme than the loaded model's.",
            why=other[:8],
            todo="Load the checkpoint with quantdock.load instead.",
        )


def _header_problems(model: Any, names: NameMap, sources: Sources) -> Iterator[str]:
    """Yield what would stop the reload half-way: tensors that are absent or of another size."""
    tied = shared_names(model)
    for name, module in model.named_modules():
        slots: set[str] = set()
        if isinstance(module, Filled):
            slots.update(own_names(module))
        if isinstance(module, LinearBase | MergedStore):
            yield from _slot_problems(module, sources)
        for last, tensor in module._parameters.items():
            full = f"{name}.{last}" if name else last
            if tensor is None or last in slots or full in tied or full in names.conversions:
                continue
            entry = sources.tensors.get(names.tensors.get(full, ""))
            part = part_of(module, last)
            expected = part.shape if part else tuple(tensor.shape)
            if entry is None:
                yield f"{full} is in no file"
            elif entry.shape != expected:
                yield f"{full} is {list(entry.shape)}, the model has {list(expected)}"
            elif _is_whole_number(entry, sources) and tensor.is_floating_point():
                yield f"{full} is {entry.dtype}, the model has floats"


def _is_whole_number(entry: TensorEntry, sources: Sources) -> bool:
    """Return whether ``entry`` holds whole numbers that no scale beside it makes floats of."""
    is_alone = len(sources.under(entry.name.rpartition(".")[0])) == 1
    return is_alone and entry.dtype.startswith(("int", "uint", "bool"))


def _slot_problems(layer: LinearBase | MergedStore, sources: Sources) -> Iterator[str]:
    method = layer.quant_method
    if not isinstance(method, QuantizedLinearMethod):
        return
    for prefix, slots in zip(shards_of(layer), method.pending.slots, strict=True):
        for slot in slots:
            for fault in slot_faults(slot, sources.stored(prefix)):
                yield f"{prefix}: {fault}"
    if isinstance(layer, MergedStore) and layer.bias is not None:
        for prefix, cut in zip(shards_of(layer), layer.cuts, strict=True):
            entry = sources.under(prefix).get("bias")
            if entry is None or entry.shape != (cut.n,):
                yield f"{prefix}.bias is {list(entry.shape) if entry else 'in no file'}"
