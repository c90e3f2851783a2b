"""The layers of a model that a config must answer for, and what the checkpoint stores of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from quantdock.integrations.transformers.names import NameMap
from quantdock.loading.sources import Sources
from quantdock.schemes import LayerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLayer:
    """One layer: its name in the model, its module, its facts under the checkpoint's name."""

    name: str
    module: nn.Module
    facts: LayerFacts
    n: int | None = None  # output features of a linear layer, rows of an embedding
    k: int | None = None  # input features, width of an embedding


def find_layers(model: Any, names: NameMap, sources: Sources) -> list[FoundLayer]:
    """Return the linear layers, embeddings, heads and experts of ``model``, in its order."""
    head = model.get_output_embeddings()
    found = []
    for name, module in model.named_modules():
        kind = _kind(module, head)
        if kind is None:
            continue
        n, k = _size(module)
        facts = _facts(name, module, kind, names, sources)
        found.append(FoundLayer(name=name, module=module, facts=facts, n=n, k=k))
    return found


def _size(module: nn.Module) -> tuple[int | None, int | None]:
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features
    if isinstance(module, nn.Embedding):
        return module.num_embeddings, module.embedding_dim
    return None, None


def _kind(module: nn.Module, head: nn.Module | None) -> str | None:
    if module is head:
        return "head"
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.Embedding):
        return "embedding"
    if any(p is not None and p.dim() == 3 for p in module._parameters.values()):
        return "experts"
    return None


def _facts(name: str, module: nn.Module, kind: str, names: NameMap, sources: Sources) -> LayerFacts:
    """Return the facts of a layer; stacked experts take those of the first that is stored."""
    prefix = names.layers.get(name, name)
    if kind == "experts":
        prefix = _first_expert(name, names) or prefix
    return LayerFacts(
        prefix=prefix,
        kind=kind,
        class_names=tuple(c.__name__ for c in type(module).__mro__[:-1]),
        aliases=() if prefix == name else (name,),
        stored=sources.stored(prefix),
    )


def _first_expert(name: str, names: NameMap) -> str | None:
    """Return the checkpoint prefix of the first tensor that the experts ``name`` are made of."""
    for target, conversion in names.conversions.items():
        if target.rpartition(".")[0] == name and conversion.sources:
            return conversion.sources[0][0].rpartition(".")[0]
    return None
