"""Which part of each layer a rank holds, by the tensor-parallel plan of the model's authors.

transformers gives many models such a plan: patterns of module names, and for each a style. Layers
that the plan leaves out are held whole by every rank, as transformers itself does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any, Literal, NoReturn

from torch import nn

from quantdock.errors import ConfigError
from quantdock.integrations.transformers.experts import intermediate_size
from quantdock.integrations.transformers.found import FoundLayer
from quantdock.layers import ParallelGroup
from quantdock.layers.partition import Division, common_blocks, place_of, require_shardable
from quantdock.schemes import Decision

Way = Literal["columns", "gathered", "rows", "split", "vocabulary", "features", "experts", "whole"]

# Styles of transformers 5.17 to 5.24. Styles that change nothing but gradients leave a layer as it
# is; so do experts that are not quantized, which every rank holds whole.
_WAYS: Mapping[str, Way] = {
    "colwise": "columns",
    "colwise_gather_output": "gathered",
    "colwise_rep": "gathered",
    "rowwise": "rows",
    "rowwise_split_input": "split",
    "rowwise_rep": "split",
    "embedding_rowwise": "vocabulary",
    "moe_tp_experts": "features",
    **dict.fromkeys(
        (
            "embedding_colwise",
            "replicate",
            "replicated_with_grad_allreduce",
            "mla_kv_a_proj",
            "moe_identity_expert",
        ),
        "whole",
    ),
}
_KEYS_AND_VALUES = frozenset({"k_proj", "v_proj"})  # of fewer heads than queries, perhaps
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """How one layer is divided among the ranks."""

    way: Way
    division: Division


def plan_shards(
    model: Any,
    found: Sequence[FoundLayer],
    decisions: Mapping[str, Decision],
    group: ParallelGroup,
    expert_parallel: bool = False,
) -> dict[str, Shard]:
    """Return how each divided layer is divided, by its name in the model; others are whole.

    Args:
        expert_parallel: deal out whole experts, whatever the plan says of their features.
    Raises:
        ConfigError: the model has no plan, the plan has a style that is not known here, or heads
            or sizes cannot be divided among the ranks (``tp_sizes``: numbers of ranks that work).
    """
    if group.size == 1:
        return {}
    if not model.tp_plan:
        _refuse(model, "transformers has no tensor-parallel plan for it (model.tp_plan)")
    rules = _Rules(model)
    rules.require_known(model, found)
    ways = {layer.name: rules.way(layer.name) for layer in found}
    shards = {
        layer.name: Shard(way=way, division=division)
        for layer in found
        if (way := ways[layer.name]) not in (None, "whole")
        and (division := _division(model, layer, way)) is not None
    }
    shards = _in_blocks(shards, decisions) | _vocabulary(model, found, ways)
    apart = {name: None if expert_parallel else way for name, way in ways.items()}
    shards |= _experts(found, decisions, apart)
    divisions = list(dict.fromkeys(shard.division for shard in shards.values()))
    require_shardable(divisions, group.size, type(model).__name__)
    return shards


class _Rules:
    """The plan's patterns; names that differ only in numbers match alike."""

    def __init__(self, model: Any) -> None:
        self.styles: Mapping[str, str] = model.tp_plan
        self._patterns = [
            (re.compile(re.escape(pattern).replace(r"\*", r"[^.]+")), pattern)
            for pattern in self.styles
        ]
        self._known: dict[str, str | None] = {}

    def way(self, name: str) -> Way | None:
        """Return how the plan divides the module or parameter ``name``; None: it does not say."""
        pattern = self.find(name)
        return None if pattern is None else _WAYS.get(self.styles[pattern])

    def find(self, name: str) -> str | None:
        """Return the pattern that matches ``name``."""
        key = _NUMBER.sub("0", name)
        if key not in self._known:
            matching = (text for regex, text in self._patterns if regex.fullmatch(key))
            self._known[key] = next(matching, None)
        return self._known[key]

    def require_known(self, model: Any, found: Sequence[FoundLayer]) -> None:
        """Refuse styles that are not known, and known ones for what is no layer.

        Raises:
            ConfigError: names the entry of the plan.
        """
        layers = {layer.name for layer in found if layer.facts.kind != "experts"}
        experts = tuple(f"{layer.name}." for layer in found if layer.facts.kind == "experts")
        own = (name for name, _ in (*model.named_modules(), *model.named_parameters()))
        for name in own:
            pattern = self.find(name)
            if pattern is None or f"{name}.".startswith(experts or "."):
                continue
            style = self.styles[pattern]
            if style not in _WAYS:
                _refuse(model, f"its plan divides {pattern} as {style!r}, which is not supported")
            if _WAYS[style] != "whole" and name not in layers:
                _refuse(model, f"its plan divides {pattern}, which is no linear layer or embedding")


def _division(model: Any, layer: FoundLayer, way: Way) -> Division | None:
    """Return how a linear layer is divided; None where it is none, or the vocabulary's."""
    if layer.facts.kind != "linear" or layer.n is None or layer.k is None:
        return None
    is_input = way in ("rows", "split")
    size = layer.k if is_input else layer.n
    is_whole_outside = way in ("gathered", "split")
    heads, is_shared = (None, False) if is_whole_outside else _heads(model, layer.name, size)
    return Division(
        name=_NUMBER.sub("*", layer.name),
        size=size,
        side="columns" if is_input else "rows",
        heads=heads,
        is_shared=is_shared,
    )


def _in_blocks(shards: Mapping[str, Shard], decisions: Mapping[str, Decision]) -> dict[str, Shard]:
    """Return ``shards`` with the blocks that had better not be cut, such as those of 128 rows."""
    blocks = common_blocks(
        (name, shard.division.size, spec.rows if shard.division.side == "rows" else spec.cols)
        for name, shard in shards.items()
        if (scheme := decisions[name].scheme) is not None and (spec := scheme.weight)
    )

    def in_block(name: str, division: Division) -> Division:
        return replace(division, block=blocks[place_of(name, division.size)])

    return {
        name: shard
        if shard.way == "gathered"  # gathering needs parts of one width
        else replace(shard, division=in_block(name, shard.division))
        for name, shard in shards.items()
    }


def _heads(model: Any, name: str, size: int) -> tuple[int | None, bool]:
    """Return the attention heads that a layer makes or takes, and whether ranks may share them."""
    parts = name.split(".")
    inside = [index for index, part in enumerate(parts[:-1]) if "att" in part.lower()]
    if not inside:
        return None, False
    attention = model.get_submodule(".".join(parts[: inside[-1] + 1]))
    config = getattr(attention, "config", None) or model.config.get_text_config()
    is_key = not _KEYS_AND_VALUES.isdisjoint(parts[inside[-1] :])
    queries = getattr(config, "num_attention_heads", None)
    heads = (getattr(config, "num_key_value_heads", None) or queries) if is_key else queries
    if not isinstance(heads, int) or size % heads:
        width = getattr(attention, "head_dim", None)
        heads = size // width if isinstance(width, int) and not size % width else None
    return heads, is_key and heads is not None and hasattr(attention, "num_key_value_groups")


def _vocabulary(
    model: Any, found: Sequence[FoundLayer], ways: Mapping[str, Way | None]
) -> dict[str, Shard]:
    """Return the head and the embedding, where the plan divides the head.

    The two may share one weight, so they are divided alike or held whole together; an embedding
    of a class of its own does more than to look up words and stays as it is.
    """
    kinds = {
        id(model.get_input_embeddings()): "embedding",
        id(model.get_output_embeddings()): "head",
    }
    layers = {kinds[id(layer.module)]: layer for layer in found if id(layer.module) in kinds}
    head, words = layers.get("head"), layers.get("embedding")
    if head is None or words is None or ways[head.name] in (None, "whole"):
        return {}
    if type(words.module) is not nn.Embedding or head.n != words.n or head.n is None:
        return {}
    return {
        layer.name: Shard(
            way="vocabulary", division=Division(name=layer.name, size=head.n, is_ragged=True)
        )
        for layer in (words, head)
    }


def _experts(
    found: Sequence[FoundLayer], decisions: Mapping[str, Decision], ways: Mapping[str, Way | None]
) -> dict[str, Shard]:
    """Return the quantized experts: their features I are divided where the plan says so.

    Where it says nothing, whole experts are dealt out, the last ranks fewer.
    """
    shards = {}
    for layer in found:
        scheme, way = decisions[layer.name].scheme, ways[layer.name]
        if layer.facts.kind != "experts" or scheme is None or way not in (None, "features"):
            continue
        name = _NUMBER.sub("*", layer.name)
        if way is None:
            count = len(layer.experts)
            division = Division(name=name, size=count, side="experts", is_ragged=True)
        else:
            block = lcm(scheme.weight.rows or 1, scheme.weight.cols or 1)
            division = Division(name=name, size=intermediate_size(layer.module), block=block)
        shards[layer.name] = Shard(way=way or "experts", division=division)
    return shards


def tell_attention(model: Any, shards: Mapping[str, Shard], group: ParallelGroup) -> None:
    """Tell each attention module which heads of keys this rank holds, as ``quantdock_kv_heads``.

    Where ranks share heads, fewer heads of queries look at each.
    """
    for name, shard in shards.items():
        heads, parts = shard.division.heads, name.split(".")
        if "k_proj" not in parts or heads is None:
            continue
        attention = model.get_submodule(".".join(parts[: parts.index("k_proj")]))
        rows, width = shard.division.part(group.rank, group.size), shard.division.size // heads
        attention.quantdock_kv_heads = range(rows.start // width, rows.stop // width)
        if group.size > heads:
            attention.num_key_value_groups = attention.num_key_value_groups * heads // group.size


def _refuse(model: Any, reason: str) -> NoReturn:
    raise ConfigError(
        f"{type(model).__name__} cannot be divided among ranks.",
        why=[reason],
        todo="Numbers of ranks that work: 1.",
        tp_sizes=(1,),
    )
