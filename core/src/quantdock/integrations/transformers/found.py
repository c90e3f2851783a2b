"""The layers of a model that a config must answer for, and what the checkpoint stores of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from quantdock.integrations.transformers.expert_places import locate_experts
from quantdock.integrations.transformers.linear_class import why_kept
from quantdock.integrations.transformers.names import NameMap
from quantdock.layers import FusedMoE, MergedStore
from quantdock.loading.sources import Sources
from quantdock.methods.experts import ExpertFacts
from quantdock.schemes import Kind, LayerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLayer:
    """One layer: its name in the model, its module, its facts under the checkpoint's name."""

    name: str
    module: nn.Module
    facts: LayerFacts
    n: int | None = None  # output features of a linear layer, rows of an embedding
    k: int | None = None  # input features, width of an embedding
    prefixes: tuple[str, ...] = ()  # checkpoint prefixes of all its tensors
    experts: tuple[ExpertFacts, ...] = ()  # where the checkpoint has each; of experts only
    why_kept: str = ""  # why it keeps a plain weight, whatever its config says; empty: it need not


def find_layers(model: Any, names: NameMap, sources: Sources) -> list[FoundLayer]:
    """Return the linear layers, embeddings, heads and experts of ``model``, in its order."""
    head = model.get_output_embeddings()
    found = []
    for name, module in model.named_modules():
        kind = _kind(name, module, head)
        if kind is None:
            continue
        n, k = _size(module)
        parent, _, last = name.rpartition(".")
        experts = tuple(locate_experts(name, module, names, sources)) if kind == "experts" else ()
        prefixes = _prefixes(name, experts, names)
        facts = _facts(name, module, kind, prefixes[0], sources)
        found.append(
            FoundLayer(
                name=name,
                module=module,
                facts=facts,
                n=n,
                k=k,
                prefixes=prefixes,
                experts=experts,
                why_kept=why_kept(module, model.get_submodule(parent), last),
            )
        )
    return found


def _size(module: nn.Module) -> tuple[int | None, int | None]:
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features
    if isinstance(module, nn.Embedding):
        return module.num_embeddings, module.embedding_dim
    return None, None


def _kind(name: str, module: nn.Module, head: nn.Module | None) -> Kind | None:
    if module is head:
        return "head"
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.Embedding):
        return "embedding"
    if isinstance(module, MergedStore):
        return None  # its layers are found by themselves
    return "experts" if _has_experts(name, module) else None


def _has_experts(name: str, module: nn.Module) -> bool:
    """Return whether ``module`` has weights of experts: in 3-D, as convolutions have theirs too."""
    if not any(p is not None and p.dim() == 3 for p in module._parameters.values()):
        return False
    is_known = isinstance(module, FusedMoE) or hasattr(module, "_apply_gate")
    return is_known or "expert" in f"{name} {type(module).__name__}".lower()


def _facts(name: str, module: nn.Module, kind: Kind, prefix: str, sources: Sources) -> LayerFacts:
    """Return the facts of a layer; stacked experts take those of the first that is stored."""
    return LayerFacts(
        prefix=prefix,
        kind=kind,
        class_names=tuple(c.__name__ for c in type(module).__mro__[:-1]),
        aliases=() if prefix == name else (name,),
        stored=sources.stored(prefix),
    )


def _prefixes(name: str, experts: tuple[ExpertFacts, ...], names: NameMap) -> tuple[str, ...]:
    """Return the checkpoint prefixes of a layer's tensors: one, or those of all experts."""
    each = (facts.prefix for expert in experts for facts in (*expert.w13, *expert.w2))
    return tuple(dict.fromkeys(each)) or (names.layers.get(name, name),)
