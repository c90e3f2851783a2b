"""What a conversion will write: every tensor, and the config.json that says how to read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantdock.convert.part import Part
from quantdock.convert.tally import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the output will hold: its tensors, its config.json, and what to say of them."""

    parts: tuple[Part, ...]
    config: Mapping[str, Any]
    num_layers: int  # that are quantized, decoded, or moved
    dropped: frozenset[str] = frozenset()  # side files that would be wrong in the output
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    tally: Tally | None = None  # where values may change, and are counted as tensors are made
