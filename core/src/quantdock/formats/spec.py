"""QuantSpec: how one tensor is encoded. The tile is data, so no class per granularity.

>>> spec = QuantSpec(element="fp8_e4m3", rows=128, cols=128)
>>> str(spec), spec.granularity, spec.grid(300, 200)
('fp8_e4m3[128x128]', 'block', (3, 2))
>>> parse_spec("fp8_e4m3[1x*]:dynamic").granularity
'channel'
>>> parse_spec("fp4_e2m1[1x16]:e4m3:second[*x*]").second
SecondScale(rows=None, cols=None, dynamic=False)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from quantdock.errors import FormatError
from quantdock.formats.element import ELEMENTS

# How a scale is stored.
SCALES = ("f32", "bf16", "e4m3", "e8m0")
# How a scale is rounded to a power of two. "exact": not at all. "ceil": up, so that nothing
# saturates (DeepGEMM ue8m0, MX "RCEIL"). "floor": the exponent of the largest value minus the
# element's own (OCP MX 1.0, section 6.3). "even": as floor, after rounding the largest value to
# the element's mantissa.
ROUNDINGS = ("exact", "ceil", "floor", "even")
# What one scale is for (QuantSpec.granularity); on activations "channel" is per token.
GRANULARITIES = ("tensor", "channel", "group", "block")
# How the scales of fused shards become one, for a kernel that takes only one. "max": multipliers;
# "min": divisors; "same": refuse unless all are equal.
FOLDS = ("max", "min", "same")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondScale:
    """The tile of a second scale, f32, that multiplies the first; it holds whole first tiles."""

    rows: int | None = None  # as QuantSpec.rows
    cols: int | None = None
    dynamic: bool = False  # computed at run time; False in a dynamic spec: only the first one is

    def grid(self, n: int, k: int) -> tuple[int, int]:
        """Return the shape of the second scale of an [n, k] tensor."""
        return _grid(self.rows, self.cols, n, k)

    def __str__(self) -> str:
        return f"second[{_tile(self.rows, self.cols)}]{'-dynamic' if self.dynamic else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantSpec:
    """How one tensor [N, K] is encoded; a stored code q means ``scale * (q - zero)``.

    With a second level (NVFP4) the scale is ``first * second``, one f32 product.
    """

    element: str  # key of ELEMENTS
    rows: int | None = None  # rows that share one scale; None = all of them
    cols: int | None = None  # columns that share one scale; None = all of them
    scale: str = "f32"  # one of SCALES
    rounding: str = "exact"  # one of ROUNDINGS
    zero: bool = False  # has an integer zero point of the scale's grid
    act_order: bool = False  # an index names each column's group; without it, cols in a row
    dynamic: bool = False  # computed from the values at run time, never stored
    fold: str = "max"  # one of FOLDS
    second: SecondScale | None = None

    def __post_init__(self) -> None:
        allowed = (
            ("element", self.element, tuple(ELEMENTS)),
            ("scale", self.scale, SCALES),
            ("rounding", self.rounding, ROUNDINGS),
            ("fold", self.fold, FOLDS),
        )
        wrong = [
            f"{field}={value!r}; known: {', '.join(known)}"
            for field, value, known in allowed
            if value not in known
        ]
        if any(size is not None and size < 1 for size in (self.rows, self.cols)):
            wrong.append(
                f"tile {self.rows} x {self.cols}: both must be at least 1, or None for all"
            )
        if self.scale == "e8m0" and self.rounding == "exact":
            wrong.append("scale='e8m0' holds powers of two, so rounding='exact' cannot be kept")
        if self.act_order and (self.cols is None or self.rows != 1 or self.dynamic):
            wrong.append("act_order=True belongs to stored groups of one row")
        if self.second is not None:
            wrong += self._misfits_of_second(self.second)
        if wrong:
            raise FormatError("A QuantSpec has impossible fields.", why=wrong, todo="Correct them.")

    def _misfits_of_second(self, second: SecondScale) -> list[str]:
        sides = (("rows", self.rows, second.rows), ("columns", self.cols, second.cols))
        wrong = [
            f"a second tile of {large} {word} does not hold whole first ones of {small or 'all'}"
            for word, small, large in sides
            if large is not None and (small is None or large < 1 or large % small > 0)
        ]
        if self.act_order:
            wrong.append("act_order=True is for one level of scales")
        if self.zero:
            wrong.append("zero=True is for one level of scales")
        if second.dynamic and not self.dynamic:
            wrong.append("a dynamic second scale belongs to dynamic first ones")
        return wrong

    @property
    def is_static(self) -> bool:
        """Return whether a scale of it is stored: its own, or a second one above dynamic ones."""
        return not self.dynamic or (self.second is not None and not self.second.dynamic)

    @property
    def granularity(self) -> str:
        """Return tensor, channel (one row; on activations: per token), group or block."""
        if self.rows is None and self.cols is None:
            return "tensor"
        if self.rows == 1:
            return "channel" if self.cols is None else "group"
        return "block"

    def grid(self, n: int, k: int) -> tuple[int, int]:
        """Return the shape of the scale of an [n, k] tensor; edge tiles count as whole ones."""
        return _grid(self.rows, self.cols, n, k)

    def __str__(self) -> str:
        marks = (
            (self.scale, self.scale != "f32"),
            (self.rounding, self.rounding != "exact"),
            ("zero", self.zero),
            ("act-order", self.act_order),
            ("dynamic", self.dynamic),
            (f"fold-{self.fold}", self.fold != "max"),
            (str(self.second), self.second is not None),
        )
        return f"{self.element}[{_tile(self.rows, self.cols)}]" + "".join(
            f":{text}" for text, on in marks if on
        )


def _grid(rows: int | None, cols: int | None, n: int, k: int) -> tuple[int, int]:
    return ceil(n / (rows or max(n, 1))), ceil(k / (cols or max(k, 1)))


def _tile(rows: int | None, cols: int | None) -> str:
    return f"{rows or '*'}x{cols or '*'}"


_TILE = r"\[(?P<rows>\d+|\*)x(?P<cols>\d+|\*)\]"
_PATTERN = re.compile(rf"(?P<element>\w+){_TILE}(?P<marks>(:[^:\s]+)*)")
_SECOND = re.compile(rf"second{_TILE}(?P<dynamic>-dynamic)?")


@lru_cache(maxsize=1024)
def parse_spec(text: str) -> QuantSpec:
    """Return the spec that ``str(spec)`` wrote.

    Raises:
        FormatError: the text has another form.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise FormatError(
            f"{text!r} is no tensor spec.", todo="Write it like fp8_e4m3[128x128]:dynamic."
        )
    marks = match["marks"].split(":")[1:]
    folds = [mark.removeprefix("fold-") for mark in marks if mark.startswith("fold-")]
    seconds = [found for mark in marks if (found := _SECOND.fullmatch(mark))]
    words = (*SCALES, *ROUNDINGS, "zero", "act-order", "dynamic", *(s[0] for s in seconds))
    unknown = [mark for mark in marks if mark not in words and not mark.startswith("fold-")]
    if unknown:
        raise FormatError(
            f"{text!r} has unknown marks {unknown}.", todo="See QuantSpec for the words."
        )
    return QuantSpec(
        element=match["element"],
        **_sizes(match),
        scale=next((s for s in SCALES if s in marks), "f32"),
        rounding=next((r for r in ROUNDINGS if r in marks), "exact"),
        zero="zero" in marks,
        act_order="act-order" in marks,
        dynamic="dynamic" in marks,
        fold=folds[0] if folds else "max",
        second=_second(seconds[0]) if seconds else None,
    )


def _second(match: re.Match[str]) -> SecondScale:
    return SecondScale(**_sizes(match), dynamic=match["dynamic"] is not None)


def _sizes(match: re.Match[str]) -> dict[str, int | None]:
    return {side: None if match[side] == "*" else int(match[side]) for side in ("rows", "cols")}
