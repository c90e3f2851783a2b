"""A plan from names alone: what layers of the usual names would be, without any header."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from quantdock.checkpoint.model_facts import has_experts, num_layers
from quantdock.plan.ignore_lists import entry_text
from quantdock.plan.plan import LayerPlan
from quantdock.plan.setting import Setting
from quantdock.plan.stored_layers import kind_of
from quantdock.schemes import LayerFacts

_USUAL_DEPTH = 32  # layers of a model whose config does not say
_MOST_DEPTH = 1000  # layers that are asked about, whatever the config says
_ATTENTION = tuple(f"self_attn.{part}_proj" for part in "qkvo")
_MLP = tuple(f"mlp.{part}_proj" for part in ("gate", "up", "down"))
_EXPERTS = tuple(f"mlp.experts.0.{part}_proj" for part in ("gate", "up", "down"))
_WILD = frozenset("*?[](){}|\\^$+:")  # of globs and regular expressions


def plan_rules(
    config: Mapping[str, Any], setting: Setting, listed: Iterable[str] = ()
) -> tuple[LayerPlan, ...]:
    """Return a plan for one layer of each kind, named as one in the middle of the model.

    First and last layers are often left out by ignore lists; the middle shows the rule. Of schemes
    that some layers have by name or number alone, the first layer that shows one follows.

    Args:
        listed: the entries of lists and overrides, as the config names them.
    """
    plans = [setting.plan(facts) for facts in _examples(config)]
    shown = {plan.scheme for plan in plans if plan.kind != "attention"}
    for facts in _others(config, listed):
        decision = setting.decide(facts)
        if decision.scheme is not None and str(decision.scheme) not in shown:
            shown.add(str(decision.scheme))
            plans.append(setting.plan(facts, decision=decision))
    return tuple(plans)


def _examples(config: Mapping[str, Any]) -> Iterator[LayerFacts]:
    middle = _block(_depth(config) // 2)
    yield LayerFacts(prefix="model.embed_tokens", kind="embedding", class_names=("Embedding",))
    yield LayerFacts(prefix=f"{middle}.self_attn", kind="attention", class_names=("Attention",))
    yield LayerFacts(prefix=f"{middle}.self_attn.o_proj")
    if has_experts(config):
        yield LayerFacts(prefix=f"{middle}.mlp.experts.0.down_proj", kind="experts")
    yield LayerFacts(prefix=f"{middle}.mlp.down_proj")
    if "vision_config" in config:
        yield LayerFacts(prefix="model.visual.blocks.0.attn.qkv")
    yield LayerFacts(prefix="lm_head", kind="head")


def _others(config: Mapping[str, Any], listed: Iterable[str]) -> Iterator[LayerFacts]:
    """Yield layers that something may be said of: those that are listed, and all of usual names."""
    depth = _depth(config)
    names = [name for entry in listed for name in _named(entry_text(entry), depth // 2)]
    last = (*_ATTENTION, *_MLP, *(_EXPERTS if has_experts(config) else ()))
    names += [f"{_block(number)}.{name}" for number in range(depth) for name in last]
    for name in dict.fromkeys(names):
        kind = kind_of(name)
        classes = ("Embedding",) if kind == "embedding" else ("Linear",)
        yield LayerFacts(prefix=name, kind=kind, class_names=classes)


def _named(text: str, middle: int) -> Iterator[str]:
    """Yield the name that an entry is of, with the middle of the model for its stars.

    >>> [*_named("*.mlp.gate", 3)], [*_named("model.layers.*.mlp", 3)], [*_named("re:.*mlp", 3)]
    (['model.layers.3.mlp.gate'], ['model.layers.3.mlp'], [])
    """
    rest = text.lstrip("*.")
    *parts, last = rest.split(".")
    name = ".".join([*(str(middle) if part == "*" else part for part in parts), last])
    if name and _WILD.isdisjoint(name):
        yield name if parts and rest == text else f"{_block(middle)}.{name}"


def _depth(config: Mapping[str, Any]) -> int:
    return min(num_layers(config) or _USUAL_DEPTH, _MOST_DEPTH)


def _block(number: int) -> str:
    return f"model.layers.{number}"
