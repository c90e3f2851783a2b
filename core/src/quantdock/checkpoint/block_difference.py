"""Two quantization blocks of one checkpoint: what they say differently."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from quantdock.errors import few

# One thing, several spellings: compared under the first one.
_SPELLINGS = {
    "ignore": ("exclude_modules", "exclude", "modules_to_not_convert", "ignored_layers"),
    "bits": ("w_bit",),
    "group_size": ("q_group_size",),
    "checkpoint_format": ("format",),
}
_FIRST = {other: first for first, others in _SPELLINGS.items() for other in others}
# How the quantizer worked, not what is stored.
_IMMATERIAL = frozenset(
    {
        "producer",
        "damp_percent",
        "damp_auto_increment",
        "true_sequential",
        "static_groups",
        "model_name_or_path",
        "model_file_base_name",
        "meta",
        "dataset",
        "batch_size",
    }
)


def differences(used: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return a line for each setting on which both speak and disagree, the used value first."""
    mine, theirs = _comparable(used), _comparable(other)
    return [
        _line(key, mine[key], theirs[key])
        for key in mine
        if key in theirs and _plain(mine[key]) != _plain(theirs[key])
    ]


def _comparable(block: Mapping[str, Any]) -> dict[str, Any]:
    return {_FIRST.get(key, key): value for key, value in block.items() if key not in _IMMATERIAL}


def _plain(value: Any) -> Any:
    """Return ``value`` without what makes no difference: case, the order of names, null lists."""
    if isinstance(value, str):
        return value.lower()
    return frozenset(value or ()) if value is None or _is_names(value) else value


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _line(key: str, mine: Any, theirs: Any) -> str:
    if _is_names(mine) and _is_names(theirs):
        only = [name for name in mine if name not in theirs]
        more = [name for name in theirs if name not in mine]
        nothing = "nothing more"
        return (
            f"{key}: {len(mine)} entries and {len(theirs)}; "
            f"only the first has {few(only, 3) or nothing}, "
            f"only the second {few(more, 3) or nothing}"
        )
    return f"{key} is {_short(mine)} and {_short(theirs)}"


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
