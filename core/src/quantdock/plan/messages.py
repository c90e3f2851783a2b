"""What a plan warns of: layers that could not run or load, and what the files contradict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quantdock.checkpoint.header import TensorEntry
from quantdock.checkpoint.lacking import find_lacking
from quantdock.checkpoint.model_facts import (
    BLOCK,
    has_head,
    is_tied,
    num_layers,
    stated_dtype,
)
from quantdock.errors import few
from quantdock.plan.grouping import collapse_all, common, starred
from quantdock.plan.plan import LayerPlan
from quantdock.plan.stored_faults import StoredFault
from quantdock.plan.stored_layers import kind_of
from quantdock.plan.tied_head import HEAD
from quantdock.schemes import KVCacheDecision, parse_scheme

if TYPE_CHECKING:
    from quantdock.plan.setting import Setting

_WEIGHTS = frozenset({"weight", "qweight", "weight_packed"})  # codes of a layer, in all dialects


def tensor_warnings(
    config: Mapping[str, Any],
    tensors: Mapping[str, TensorEntry],
    layers: Sequence[LayerPlan],
    faults: Iterable[StoredFault],
) -> Iterator[str]:
    """Yield what the headers of all tensors show besides the plan of each layer."""
    yield from model_warnings(config, tensors)
    yield from fault_warnings(faults)
    yield from lacking_warnings(tensors, layers)


def model_warnings(config: Mapping[str, Any], tensors: Iterable[str]) -> Iterator[str]:
    """Yield where the tensors contradict what config.json says of the model."""
    names = set(tensors)
    has_stored_head = any(_is_of_head(name) for name in names)
    if has_head(config) and is_tied(config) is False and not has_stored_head:
        yield f"config.json says tie_word_embeddings=false, and no {HEAD}.weight is stored"
    depth, stored = num_layers(config) or 0, _numbers(names)
    if stored and (gaps := _gaps(stored, depth)):
        which = f"layers {', '.join(gaps)}" if "-" in gaps[0] or gaps[1:] else f"layer {gaps[0]}"
        yield f"config.json says num_hidden_layers={depth}, and no tensor of {which} is stored"


def dtype_warnings(config: Mapping[str, Any], dtype: str) -> Iterator[str]:
    """Yield what the dtype of activations risks, by what config.json says of the model."""
    if stated_dtype(config) == "bfloat16" and dtype == "float16":
        yield (
            "config.json states bfloat16, and float16 is used: activations beyond 65504 become "
            "infinite"
        )


def _gaps(numbers: Iterable[int], end: int) -> list[str]:
    """Return what lies below ``end`` and is not among ``numbers``, as ``7`` or ``2-5``."""
    inside = sorted(number for number in numbers if number < end)
    pairs = zip([-1, *inside], [*inside, end], strict=True)
    runs = [(first + 1, last - 1) for first, last in pairs if last - first > 1]
    return [str(first) if first == last else f"{first}-{last}" for first, last in runs]


def _is_of_head(tensor: str) -> bool:
    """Return whether ``tensor`` is the weight of the model's own head, no further one's."""
    prefix, _, part = tensor.rpartition(".")
    return part in _WEIGHTS and "layers." not in prefix and kind_of(prefix) == "head"


def _numbers(tensors: Iterable[str]) -> set[int]:
    """Return the numbers of the model's blocks of which something is stored."""
    return {int(match[1]) for name in tensors if (match := BLOCK.match(name))}


def model_notes(config: Mapping[str, Any], tensors: Iterable[str]) -> Iterator[str]:
    """Yield what is stored for parts that a plain model does not build."""
    depth = num_layers(config)
    numbers = _numbers(tensors)
    extra = sorted(number for number in numbers if depth is not None and number >= depth)
    if extra:
        yield (
            f"layers {', '.join(map(str, extra))} lie beyond num_hidden_layers={depth}: they are "
            "for multi-token prediction, which plain generation does not build"
        )


def cache_notes(scales: Sequence[str], decision: KVCacheDecision) -> Iterator[str]:
    """Yield why the stored ``scales`` of keys and values are not used."""
    if scales:
        kept = "in the model's dtype" if decision.spec is None else f"as {decision.spec}"
        yield (
            f"{len(scales):,} scales of the KV cache ({few(collapse_all(scales), 3)}) are not "
            f"used: it is kept {kept}"
        )


def unused_requirement(layers: Iterable[LayerPlan], setting: Setting) -> Iterator[str]:
    """Yield that the kernel which the user requires is for none of ``layers``, if so."""
    required = setting.dispatch.policy.require
    weights = [layer for layer in layers if layer.kind != "attention"]
    if required is not None and all(layer.decision == "unquantized" for layer in weights):
        yield f"the kernel {required} is required, and none of these layers would be quantized"


def withheld(layers: Iterable[LayerPlan], setting: Setting) -> Iterator[str]:
    """Yield the changes of scheme that the platform declares, would take, and was not allowed."""
    dispatch, platform = setting.dispatch, setting.dispatch.platform
    is_exact = dispatch.policy.exact
    reason = "exact, as asked" if is_exact else "the method promises its scheme"
    last = {None, *(kernel.name for kernel in dispatch.kernels if kernel.is_reference)}
    kept = (layer for layer in layers if (is_exact or layer.promised) and layer.kernel in last)
    for text in dict.fromkeys(layer.scheme for layer in kept):
        scheme = parse_scheme(text) if text else None
        rows = (s for s in dispatch.substitutions if scheme and s.applies(scheme, platform))
        if scheme and (row := next(rows, None)):
            yield (
                f"{reason}: {scheme} does not run as {row.result(scheme)}, which {platform} "
                f"declares for it ({row.why})"
            )


def fault_warnings(faults: Iterable[StoredFault]) -> Iterator[str]:
    """Yield one line for each kind of fault that belongs to no layer's plan, naming the tensors."""
    by_kind: dict[tuple[str, str], list[str]] = {}
    for fault in faults:
        by_kind.setdefault((fault.text, fault.why), []).append(fault.layer)
    for (text, why), names in by_kind.items():
        reason = f" ({why})" if why else ""
        yield f"{_count(names)}: loading would stop: {text}{reason}"


def lacking_warnings(
    tensors: Mapping[str, TensorEntry], layers: Iterable[LayerPlan] = ()
) -> Iterator[str]:
    """Yield one line for each tensor that some layers lack and most of their kind have.

    Args:
        layers: plans that may say already that loading would stop without it.
    """
    told = {layer.prefix: (layer.decision, layer.warnings) for layer in layers}
    for lacking in find_lacking(tensors):
        fault = f"loading would stop: {lacking.part} is missing"
        decided = [(name, told.get(name, ("", ()))) for name in lacking.layers]
        names = [name for name, (is_, has) in decided if is_ != "error" and fault not in has]
        if names:
            yield f"{_count(names)}: {lacking}; numbers are wrong if it was lost"


def layer_warnings(layers: Iterable[LayerPlan], setting: Setting) -> Iterator[str]:
    """Yield one line for each thing that is wrong with some layers, naming them."""
    by_text: dict[str, list[LayerPlan]] = {}
    for layer in layers:
        for text in _faults(layer, setting.dispatch.policy.require):
            by_text.setdefault(text, []).append(layer)
    found: dict[str, list[str]] = {}  # texts that differ in the numbers of layers only
    for text in by_text:
        found.setdefault(starred(text), []).append(text)
    for texts in found.values():
        members = [layer for text in texts for layer in by_text[text]]
        yield f"{_count([layer.prefix for layer in members])}: {common(texts)}"


def _faults(layer: LayerPlan, required: str | None) -> Iterator[str]:
    if layer.decision == "error":
        yield f"cannot be built: {layer.because}"
    if layer.lacks_kernel and required:
        reasons = (r.reasons for r in layer.rejected if r.kernel == required)
        because = "; ".join(next(reasons, ()))
        told = f"the required kernel {required} does not run {layer.scheme}"
        yield f"{told}: {because}" if because else told
    elif layer.lacks_kernel:
        yield f"no kernel here runs {layer.scheme}"
    yield from layer.warnings


def _count(names: Sequence[str]) -> str:
    return f"{len(names):,} layer{'s' if len(names) > 1 else ''} ({few(collapse_all(names), 3)})"
