"""Which part of a layer each rank gets: pure arithmetic on sizes, heads and ranks.

Scales never stand in the way, since a part may begin inside a tile (numerics/cut.py). What cannot
be divided is a head, and a size that the ranks would share unequally.

>>> queries = Division(name="q_proj", size=576, heads=9)
>>> keys = Division(name="k_proj", size=192, heads=3, is_shared=True)
>>> why_not_shardable([queries, keys], 2)
('q_proj: 9 heads cannot be divided among 2 ranks', \
'k_proj: neither of 3 heads and 2 ranks divides the other')
>>> legal_tp_sizes([queries, keys])
(1, 3, 9)
>>> keys.part(rank=5, size=9)
range(64, 128)
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Literal

from quantdock.errors import ConfigError, few

_DECODER_LAYER = re.compile(r".*\.\d+(?=\.)")
LARGEST_TP = 64  # the most ranks that are tried when the numbers that work are listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """One dimension of a layer that ranks divide, and what of it must stay together.

    Attributes:
        name: of the layer, for messages.
        size: rows or columns.
        side: which dimension it is; "experts" where whole ones are dealt out.
        heads: units that stay whole; None: each row or column stands alone.
        block: rows or columns that had better stay together, as those of one scale do: parts are
            whole blocks where there are enough of them, and then differ by a block at most.
        is_shared: more ranks than heads is fine, several then hold the same (keys and values).
        is_ragged: the last ranks may hold less than the others (a vocabulary).
    """

    name: str
    size: int
    side: Literal["rows", "columns", "experts"] = "rows"
    heads: int | None = None
    block: int = 1
    is_shared: bool = False
    is_ragged: bool = False

    def why_not(self, size: int) -> str:
        """Return why ``size`` ranks cannot divide it; empty where they can."""
        units, word = (self.size, self.side) if self.heads is None else (self.heads, "heads")
        if self.is_ragged:
            some_are_empty = (size - 1) * self._width(size) >= units
            return f"{units} {word} leave some of {size} ranks empty" if some_are_empty else ""
        if self.is_shared:
            is_legal = units % size == 0 or size % units == 0
            return (
                "" if is_legal else f"neither of {units} {word} and {size} ranks divides the other"
            )
        return f"{units} {word} cannot be divided among {size} ranks" if units % size else ""

    def part(self, rank: int, size: int) -> range:
        """Return what ``rank`` of ``size`` holds, where ``why_not`` has nothing against it."""
        if self.is_shared and self.heads is not None and size > self.heads:
            rank, size = rank * self.heads // size, self.heads
        width = self._width(size)
        if self.block == 1 or self.heads is not None:
            return range(rank * width, min((rank + 1) * width, self.size))
        block = self.block
        while -(-self.size // block) < size and block > 1:
            block //= 2
        count = -(-self.size // block)
        start, stop = (edge * count // size * block for edge in (rank, rank + 1))
        return range(start, min(stop, self.size))

    def _width(self, size: int) -> int:
        return -(-self.size // size)


def place_of(name: str, size: int) -> tuple[str, int]:
    """Return the decoder layer that the layer ``name`` is in, and the size that is divided.

    >>> place_of("model.layers.3.mlp.up_proj", 704)
    ('model.layers.3', 704)
    """
    inside = _DECODER_LAYER.match(name)
    return inside[0] if inside else "", size


def common_blocks(tiles: Iterable[tuple[str, int, int | None]]) -> dict[tuple[str, int], int]:
    """Return the ``block`` of each place, from (layer, divided size, rows or columns of a tile).

    What one layer makes the next one takes, so layers of one size in one place are cut alike.
    """
    blocks: dict[tuple[str, int], int] = defaultdict(lambda: 1)
    for name, size, tile in tiles:
        place = place_of(name, size)
        blocks[place] = lcm(blocks[place], tile or 1)
    return blocks


def why_not_shardable(divisions: Iterable[Division], size: int) -> tuple[str, ...]:
    """Return every reason against dividing layers among ``size`` ranks, layer by layer."""
    reasons = ((division.name, division.why_not(size)) for division in divisions)
    return tuple(f"{name}: {reason}" for name, reason in reasons if reason)


def legal_tp_sizes(divisions: Sequence[Division], most: int = LARGEST_TP) -> tuple[int, ...]:
    """Return the numbers of ranks, up to ``most``, that can divide every layer."""
    return tuple(size for size in range(1, most + 1) if not any(d.why_not(size) for d in divisions))


def require_shardable(divisions: Sequence[Division], size: int, what: str) -> None:
    """Raise if ``size`` ranks cannot divide the layers of ``what``.

    Raises:
        ConfigError: lists the reasons, and the numbers of ranks that would work (``tp_sizes``).
    """
    reasons = why_not_shardable(divisions, size)
    if reasons:
        sizes = legal_tp_sizes(divisions)
        raise ConfigError(
            f"{what} cannot be divided among {size} ranks.",
            why=[*reasons[:8], *([f"and {len(reasons) - 8} more"] if len(reasons) > 8 else [])],
            todo=f"Numbers of ranks that work: {few([str(s) for s in sizes], 12)}.",
            tp_sizes=sizes,
        )
