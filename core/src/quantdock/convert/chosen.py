"""Which layers of a 16-bit checkpoint are quantized, to what; all else is copied bit for bit."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from quantdock.checkpoint import Checkpoint
from quantdock.convert.deciding import Deciding
from quantdock.convert.fit import require_fit
from quantdock.convert.request import Request
from quantdock.errors import NothingQuantizedError, few
from quantdock.formats import ELEMENTS
from quantdock.plan.grouping import collapse_all
from quantdock.plan.stored_layers import StoredLayer, stored_model
from quantdock.registry.spelling import closest
from quantdock.schemes import LayerFacts, Scheme

_EXPERTS = re.compile(r"(\.experts)\..*")
_HEAD = "lm_head"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What becomes of the layers of a checkpoint.

    Attributes:
        quantized: prefix -> scheme, in file order.
        plain: prefixes of linear layers and experts that stay as they are, for the ignore list.
        notes: what a user should know of the layers that stay. warnings: what may go wrong.
    """

    quantized: Mapping[str, Scheme]
    plain: tuple[str, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def choose_layers(
    checkpoint: Checkpoint, request: Request, known: Sequence[LayerFacts] | None
) -> Chosen:
    """Return what ``request`` makes of each layer.

    Args:
        known: the layers of the model, where its classes were asked; a layer outside is not a
            linear layer, or not part of the model, and is copied. None: names alone decide.
    Raises:
        ConfigError: a layer that was to be quantized cannot be, or does not fit the dialect.
        NothingQuantizedError: no layer would be quantized.
    """
    config = request.deciding()
    layers = stored_model(checkpoint.tensors).layers
    by_prefix = None if known is None else {facts.prefix: facts for facts in known}
    decided = {layer.facts.prefix: _decide(layer, config, by_prefix) for layer in layers}
    quantized = {prefix: scheme for prefix, scheme in decided.items() if scheme is not None}
    if not quantized:
        raise NothingQuantizedError(
            f"{request.to} was asked for, and no layer of {checkpoint.folder} would be quantized.",
            why=[f"of {len(layers)} layers with weights, all are left as they are"],
            todo="Change --ignore or --choose; embeddings, heads and routers stay, and experts "
            "that no --choose names.",
        )
    shapes = {layer.facts.prefix: layer.layout.weight_shape for layer in layers}
    require_fit(request.dialect, quantized, shapes)
    facts = (*(layer.facts for layer in layers), *(known or ()))
    return Chosen(
        quantized=quantized,
        plain=plain_names(((f.kind, f.prefix) for f in facts), quantized),
        notes=tuple(_notes(layers, by_prefix, quantized)),
        warnings=tuple(_warnings(layers, quantized, config)),
    )


def _decide(
    layer: StoredLayer, config: Deciding, known: Mapping[str, LayerFacts] | None
) -> Scheme | None:
    facts = layer.facts if known is None else known.get(layer.facts.prefix, layer.facts)
    decision = config.scheme_for(facts)
    if layer.facts.kind == "experts":
        if not config.takes(facts) or len(layer.layout.weight_shape) != 2:
            return None
    elif known is not None and facts.prefix not in known:
        return None
    config.refuse(decision, facts)
    return decision.scheme


def plain_names(layers: Iterable[tuple[str, str]], quantized: Collection[str]) -> tuple[str, ...]:
    """Return the names for the ignore list; all experts of a module go by that module's name.

    Args:
        layers: (kind, prefix) of every layer. quantized: the prefixes that are not to be listed.
    """
    layers = tuple(layers)
    names = [
        _EXPERTS.sub(r"\1", prefix) if kind == "experts" else prefix
        for kind, prefix in layers
        if kind in ("linear", "head", "experts") and prefix not in quantized
    ]
    has_head = any(kind == "head" for kind, _ in layers)
    return tuple(dict.fromkeys([*names, *([] if has_head else [_HEAD])]))


def _notes(
    layers: Sequence[StoredLayer],
    known: Mapping[str, LayerFacts] | None,
    quantized: Collection[str],
) -> Iterator[str]:
    if known is None:
        yield "which layers are linear was told by the names of their tensors alone"
    experts = [
        layer.facts.prefix
        for layer in layers
        if layer.facts.kind == "experts" and layer.facts.prefix not in quantized
    ]
    if experts:
        yield f"experts are copied, not quantized: {few(collapse_all(experts), 3)}"
    strange = [
        layer.facts.prefix
        for layer in layers
        if known is not None and layer.facts.kind == "linear" and layer.facts.prefix not in known
    ]
    if strange:
        yield (
            "copied, because the model's code builds no linear layer of them: "
            f"{few(collapse_all(strange), 3)}"
        )


def _warnings(
    layers: Sequence[StoredLayer], quantized: Mapping[str, Scheme], config: Deciding
) -> Iterator[str]:
    known = {layer.facts.prefix.rpartition(".")[2] for layer in layers}
    for entry in config.unmatched():
        pattern = entry.split("'")[1]
        near = closest(pattern.rpartition(".")[2], known)
        yield f"{entry} matches no layer" + (f"; did you mean {near}?" if near else "")
    shapes = {layer.facts.prefix: layer.layout.weight_shape for layer in layers}
    yield from ragged(quantized, shapes)


def ragged(quantized: Mapping[str, Scheme], shapes: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yield that layers, of floats, end in a part of a tile; ``shapes``: prefix -> (n, k)."""
    found = []
    for prefix, scheme in quantized.items():
        n, k = shapes[prefix]
        rows, cols = scheme.weight.rows or 1, scheme.weight.cols or 1
        if ELEMENTS[scheme.weight.element].is_float and (n % rows or k % cols):
            found.append(prefix)
    if found:
        count = "1 layer ends" if len(found) == 1 else f"{len(found)} layers end"
        yield (
            f"{count} in a part of a tile ({few(collapse_all(found), 3)}); "
            "QuantDock reads that, transformers and compressed-tensors want whole tiles"
        )
