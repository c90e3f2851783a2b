"""A plan from names alone: what layers of the usual names would be, without any header."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantdock.checkpoint.model_facts import has_experts, num_layers
from quantdock.plan.plan import LayerPlan
from quantdock.plan.setting import Setting
from quantdock.schemes import LayerFacts

_USUAL_DEPTH = 32  # layers of a model whose config does not say


def plan_rules(config: Mapping[str, Any], setting: Setting) -> tuple[LayerPlan, ...]:
    """Return a plan for one layer of each kind, named as one in the middle of the model.

    First and last layers are often left out by ignore lists; the middle shows the rule.
    """
    return tuple(setting.plan(facts) for facts in _examples(config))


def _examples(config: Mapping[str, Any]) -> Iterator[LayerFacts]:
    middle = f"model.layers.{(num_layers(config) or _USUAL_DEPTH) // 2}"
    yield LayerFacts(prefix="model.embed_tokens", kind="embedding", class_names=("Embedding",))
    yield LayerFacts(prefix=f"{middle}.self_attn", kind="attention", class_names=("Attention",))
    yield LayerFacts(prefix=f"{middle}.self_attn.o_proj")
    if has_experts(config):
        yield LayerFacts(prefix=f"{middle}.mlp.experts.0.down_proj", kind="experts")
    yield LayerFacts(prefix=f"{middle}.mlp.down_proj")
    if "vision_config" in config:
        yield LayerFacts(prefix="model.visual.blocks.0.attn.qkv")
    yield LayerFacts(prefix="lm_head", kind="head")
