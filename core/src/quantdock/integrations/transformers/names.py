"""From checkpoint names to module names, by transformers' own conversion tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from quantdock.checkpoint.quantization_tensors import is_quantization_tensor
from quantdock.layers import MergedView

_Rename = Callable[[str], tuple[str, str | None]]


@dataclass(slots=True)
class Conversion:
    """One model tensor that is made of several checkpoint tensors (stacked experts)."""

    converter: Any
    sources: list[tuple[str, str]] = field(default_factory=list)  # (checkpoint name, pattern)

    def fresh(self) -> Any:
        """Return a converter that has collected nothing."""
        return deepcopy(self.converter)


@dataclass(slots=True)
class NameMap:
    """Where each tensor of a checkpoint belongs in the model.

    ``layers``: module name -> the checkpoint prefix its tensors lie under.
    ``tensors``: model tensor name -> the checkpoint tensor it is read from.
    ``conversions``: model tensor name -> how it is made of several.
    """

    layers: dict[str, str]
    tensors: dict[str, str]
    conversions: dict[str, Conversion]


def map_names(model: Any, names: Iterable[str]) -> NameMap:
    """Return where every checkpoint tensor in ``names`` belongs in ``model`` (on meta, unswapped).

    A quantization tensor lies where the weight beside it would; where codes are stored under
    other names, the weight they stand for is mapped although no file has a tensor of its name.
    """
    converters, known, rename = _renaming(model)
    result = NameMap({}, {}, {})
    beside: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names, key=dot_natural_key):
        beside[name.rpartition(".")[0]].append(name)
    for prefix, members in beside.items():
        layer, pattern = rename(f"{prefix}.weight" if prefix else "weight")
        if pattern is not None:
            conversion = result.conversions.setdefault(layer, Conversion(converters[pattern]))
            conversion.sources.append((f"{prefix}.weight", pattern))
            continue
        result.layers.setdefault(layer.removesuffix("weight").removesuffix("."), prefix)
        if layer in known and any(is_quantization_tensor(member, "") for member in members):
            result.tensors.setdefault(layer, f"{prefix}.weight")
        for member in members:
            new, member_pattern = rename(member)
            if member_pattern is not None:
                made = result.conversions.setdefault(new, Conversion(converters[member_pattern]))
                made.sources.append((member, member_pattern))
            else:
                result.tensors.setdefault(new, member)
    return result


def _renaming(model: Any) -> tuple[dict[str, Any], dict[str, Any], _Rename]:
    """Return the converters by source pattern, the tensors of ``model``, and the function.

    The function returns the model's name for a checkpoint's, and the pattern of its converter.
    """
    transforms = get_model_conversion_mapping(model)
    renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
    converters = [t for t in transforms if isinstance(t, WeightConverter)]
    known = dict(model.state_dict())
    # Layers of a merged store hold no tensor, and their files do.
    known |= {f"{name}.weight": None for name, m in model.named_modules() if type(m) is MergedView}

    def rename(name: str) -> tuple[str, str | None]:
        new, pattern = rename_source_key(
            name, renamings, converters, model.base_model_prefix, known
        )
        if new not in known and name in known:
            return name, None
        return new, pattern

    return {pattern: c for c in converters for pattern in c.source_patterns}, known, rename
