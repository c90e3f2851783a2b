"""How a product of scaled codes is divided among programs, as facts with a short spelling.

>>> tile = parse_tile("16x64x128 parts=4 stages=6 swap tma")
>>> tile.n, tile.parts, tile.swap, str(tile)
(64, 4, True, '16x64x128 parts=4 stages=6 swap tma')
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import Any

from quantdock.errors import FormatError


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What the kernel must know of the operands besides their sizes."""

    x_cols: int = 0  # columns of x that share a scale; 0: all of them
    weight_cols: int = 0  # likewise of the weight
    weight_rows: int = 1  # rows of the weight that share a row of its scales
    element: str = "fp8_e4m3"  # of the weight
    weight_only: bool = False  # x is not codes: the weight is widened to its dtype

    @property
    def is_grouped(self) -> bool:
        """Return whether a scale changes along K."""
        return self.x_cols > 0 or self.weight_cols > 0

    def block_k(self, most: int) -> int:
        """Return the widest step, a power of two up to ``most``, in which no scale changes."""
        shared = gcd(self.x_cols, self.weight_cols)
        return min(most, shared & -shared) if shared else most


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """The tile of the result that one program computes, and how."""

    m: int  # rows of x
    n: int  # rows of the weight
    k: int  # columns of a step, or of what is copied at once where there are ``roles``
    parts: int = 1  # programs that share the sum over K
    warps: int = 4
    stages: int = 4  # steps that are in flight
    band: int = 8  # rows of tiles whose programs run side by side
    resident: int = 1  # programs that a multiprocessor holds at once, where ``roles`` fix it
    slices: int = 1  # groups of warps that take turns at the steps of a sum, where there are roles
    swap: bool = False  # the weight is the left operand
    tma: bool = False  # operands come through the bulk copy engine
    roles: bool = False  # one warp copies, the others multiply

    def __str__(self) -> str:
        numbers = [
            f"{name}={getattr(self, name)}"
            for name, usual in _USUAL.items()
            if getattr(self, name) != usual
        ]
        flags = [name for name in _FLAGS if getattr(self, name)]
        return " ".join([f"{self.m}x{self.n}x{self.k}", *numbers, *flags])

    def shared_bytes(self, form: Form) -> int:
        """Return the most shared memory that the stages take."""
        x_bytes = 4 if form.weight_only else 1
        columns = self.k if self.roles else form.block_k(self.k)
        return (self.m * x_bytes + self.n) * columns * self.stages

    def fitted(self, form: Form, most_bytes: int) -> Tile:
        """Return this tile with as many of its stages as ``most_bytes`` of memory hold."""
        stages = self.stages
        while stages > 1 and replace(self, stages=stages).shared_bytes(form) > most_bytes:
            stages -= 1
        return replace(self, stages=stages)


_USUAL = {"parts": 1, "warps": 4, "stages": 4, "band": 8, "resident": 1, "slices": 1}
_FLAGS = ("swap", "tma", "roles")
_SIZES = re.compile(r"(\d+)x(\d+)x(\d+)")


@lru_cache(maxsize=4096)
def parse_tile(text: str) -> Tile:
    """Return the tile that ``str(tile)`` wrote.

    Raises:
        FormatError: the text has another form.
    """
    first, *words = text.split()
    sizes = _SIZES.fullmatch(first)
    numbers = dict(word.split("=") for word in words if "=" in word)
    flags = {word for word in words if "=" not in word}
    if sizes is None or numbers.keys() - _USUAL.keys() or flags - set(_FLAGS):
        raise FormatError(
            f"{text!r} is no tile.",
            why=[f"known words: {', '.join((*_USUAL, *_FLAGS))}"],
            todo="Write it like 16x64x128 parts=4 stages=6 swap.",
        )
    m, n, k = (int(size) for size in sizes.groups())
    words_of_tile: dict[str, Any] = {name: int(value) for name, value in numbers.items()}
    return Tile(m=m, n=n, k=k, **words_of_tile, **dict.fromkeys(flags, True))
