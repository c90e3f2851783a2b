"""What a plan warns of: layers that could not run or load, and what the files contradict."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from quantdock.checkpoint.model_facts import has_head, is_tied, num_layers
from quantdock.plan.grouping import collapse_all
from quantdock.plan.plan import LayerPlan

_HEAD = "lm_head.weight"
_LAYER = re.compile(r"^model\.(?:language_model\.)?layers\.(\d+)\.")


def model_warnings(config: Mapping[str, Any], tensors: Iterable[str]) -> Iterator[str]:
    """Yield where the tensors contradict what config.json says of the model."""
    names = set(tensors)
    has_stored_head = any(name.endswith(_HEAD) for name in names)
    if has_head(config) and is_tied(config) is False and not has_stored_head:
        yield f"config.json says tie_word_embeddings=false, and no {_HEAD} is stored"


def model_notes(config: Mapping[str, Any], tensors: Iterable[str]) -> Iterator[str]:
    """Yield what is stored for parts that a plain model does not build."""
    depth = num_layers(config)
    numbers = {int(match[1]) for name in tensors if (match := _LAYER.match(name))}
    extra = sorted(number for number in numbers if depth is not None and number >= depth)
    if extra:
        yield (
            f"layers {', '.join(map(str, extra))} lie beyond num_hidden_layers={depth}: they are "
            "for multi-token prediction, which plain generation does not build"
        )


def cache_notes(scales: Sequence[str]) -> Iterator[str]:
    """Yield what becomes of the stored ``scales`` of the KV cache."""
    if scales:
        patterns = collapse_all(scales)
        yield (
            f"{len(scales):,} scales of the KV cache ({_few(patterns)}) are not used: it stays in "
            "the model's dtype, which needs none"
        )


def layer_warnings(layers: Iterable[LayerPlan]) -> Iterator[str]:
    """Yield one line for each thing that is wrong with some layers, naming them."""
    found: dict[str, list[LayerPlan]] = {}
    for layer in layers:
        if layer.decision == "error":
            found.setdefault(f"cannot be built: {layer.because}", []).append(layer)
        if layer.lacks_kernel:
            found.setdefault(f"no kernel here runs {layer.scheme}", []).append(layer)
        for warning in layer.warnings:
            found.setdefault(warning, []).append(layer)
    for text, members in found.items():
        yield f"{_count(members)}: {text}"


def _count(layers: list[LayerPlan]) -> str:
    patterns = collapse_all(layer.prefix for layer in layers)
    return f"{len(layers):,} layer{'s' if len(layers) > 1 else ''} ({_few(patterns)})"


def _few(texts: list[str]) -> str:
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
