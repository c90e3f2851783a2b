"""What a config.json says of the model besides its quantization; language part included."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
# A name in a block of the decoder, and the block's number.
BLOCK = re.compile(r"^model\.(?:language_model\.)?layers\.(\d+)\.")


def model_type(config: Mapping[str, Any]) -> str:
    """Return the model's type, or its first architecture; "" where neither is said."""
    names = _architectures(config)
    return str(config.get("model_type") or (names[0] if names else ""))


def stated_dtype(config: Mapping[str, Any]) -> str | None:
    """Return the dtype that the file states for weights and activations, such as "bfloat16"."""
    for place in _places(config):
        for key in ("dtype", "torch_dtype"):
            if isinstance(place.get(key), str):
                return str(place[key]).removeprefix("torch.")
    return None


def is_tied(config: Mapping[str, Any]) -> bool | None:
    """Return whether head and embedding are one tensor; None where the file is silent."""
    for place in _places(config):
        if isinstance(place.get("tie_word_embeddings"), bool):
            return bool(place["tie_word_embeddings"])
    return None


def has_head(config: Mapping[str, Any]) -> bool:
    """Return whether the architecture is one with a language-model head."""
    endings = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
    return any(name.endswith(endings) for name in _architectures(config))


def may_have_head(config: Mapping[str, Any]) -> bool:
    """Return the same of what loading builds: a causal model where no architecture is stated."""
    return has_head(config) or not _architectures(config)


def num_layers(config: Mapping[str, Any]) -> int | None:
    """Return the number of decoder layers, where the file says it."""
    for place in _places(config):
        number = _number(place, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
        if number is not None:
            return number
    return None


def kv_shape(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return how one token's keys and values are shaped in one layer, where the file says it.

    That is the number of heads, and how many values one head's key and value have together.
    """
    for place in _places(config):
        queries = _number(place, "num_attention_heads", "n_head", "n_heads", "num_heads")
        if not queries:
            continue
        if _number(place, "kv_lora_rank") is not None:  # keys and values are kept uncompressed
            parts = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
            widths = [width for part in parts if (width := _number(place, part)) is not None]
            return (queries, sum(widths)) if len(widths) == len(parts) else None
        hidden = _number(place, "hidden_size", "n_embd", "d_model") or 0
        width = _number(place, "head_dim") or hidden // queries
        heads = _number(place, "num_key_value_heads", "num_kv_heads", "n_head_kv") or queries
        return (heads, 2 * width) if width else None
    return None


def has_experts(config: Mapping[str, Any]) -> bool:
    """Return whether the model has routed experts."""
    return any(place.get(key) for place in _places(config) for key in _EXPERTS)


def num_experts(config: Mapping[str, Any]) -> int | None:
    """Return the number of routed experts of a layer, where the file says one."""
    numbers = (_number(place, *_EXPERTS) for place in _places(config))
    return next((number for number in numbers if number), None)


def is_beyond(name: str, depth: int | None) -> bool:
    """Return whether a layer or tensor lies in a block that the model of ``depth`` does not build.

    >>> is_beyond("model.layers.61.mlp.experts", 61), is_beyond("model.layers.60.mlp.experts", 61)
    (True, False)
    """
    match = BLOCK.match(name)
    return match is not None and depth is not None and int(match[1]) >= depth


def _architectures(config: Mapping[str, Any]) -> list[str]:
    """Return the names of model classes that the file states; none where it is no list."""
    stated = config.get("architectures")
    return [name for name in stated if isinstance(name, str)] if isinstance(stated, list) else []


def _number(place: Mapping[str, Any], *keys: str) -> int | None:
    return next((place[key] for key in keys if isinstance(place.get(key), int)), None)


def _places(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the config itself, then its sub-configs, language ones first."""
    yield config
    parts = [(name, part) for name, part in config.items() if isinstance(part, Mapping)]
    for _, part in sorted(parts, key=lambda item: not item[0].startswith(("text", "llm", "lang"))):
        yield part
