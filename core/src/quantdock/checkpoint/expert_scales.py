"""Scales of experts that are stored under another name of their weight than the weight itself.

W4AFP8 files have ``experts.0.gate_proj.weight``, and the scale of its input as
``experts.0.w1.input_scale``.

>>> homes({"experts.0.gate_proj.weight": 1, "experts.0.w1.input_scale": 2})
{'experts.0.w1.input_scale': 'experts.0.gate_proj'}
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Protocol

_ROLES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


class Names(Container[str], Iterable[str], Protocol):
    """The tensors of a checkpoint by name."""


def homes(names: Names) -> dict[str, str]:
    """Return the layer that each such tensor belongs to."""
    found = {}
    for name in names:
        if not (".w1." in name or ".w2." in name or ".w3." in name) or "experts." not in name:
            continue
        prefix, _, last = name.rpartition(".")
        expert, _, role = prefix.rpartition(".")
        if role not in _ROLES or f"{prefix}.weight" in names:
            continue
        home = f"{expert}.{_ROLES[role]}"
        if f"{home}.weight" in names and f"{home}.{last}" not in names:
            found[name] = home
    return found
