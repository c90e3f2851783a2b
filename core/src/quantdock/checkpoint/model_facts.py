"""What a config.json says of the model besides its quantization; language part included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def model_type(config: Mapping[str, Any]) -> str:
    """Return the model's type, or its first architecture; "" where neither is said."""
    architectures = config.get("architectures") or [""]
    return str(config.get("model_type") or architectures[0])


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
    names = config.get("architectures") or []
    return any(str(name).endswith(("ForCausalLM", "ForConditionalGeneration")) for name in names)


def num_layers(config: Mapping[str, Any]) -> int | None:
    """Return the number of decoder layers, where the file says it."""
    for place in _places(config):
        for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
            if isinstance(place.get(key), int):
                return int(place[key])
    return None


def has_experts(config: Mapping[str, Any]) -> bool:
    """Return whether the model has routed experts."""
    keys = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
    return any(place.get(key) for place in _places(config) for key in keys)


def _places(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the config itself, then its sub-configs, language ones first."""
    yield config
    parts = [(name, part) for name, part in config.items() if isinstance(part, Mapping)]
    for _, part in sorted(parts, key=lambda item: not item[0].startswith(("text", "llm", "lang"))):
        yield part
