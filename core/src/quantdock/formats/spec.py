"""QuantSpec: how one tensor is encoded. The tile is data, so no class per granularity.

>>> spec = QuantSpec(element="fp8_e4m3", rows=128, cols=128)
>>> str(spec), spec.granularity, spec.grid(300, 200)
('fp8_e4m3[128x128]', 'block', (3, 2))
>>> parse_spec("fp8_e4m3[1x*]:dynamic").granularity
'channel'
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from quantdock.errors import FormatError
from quantdock.formats.element import ELEMENTS

# How a scale is stored, widest first.
SCALES = ("f32", "bf16", "e8m0")
# How a scale is rounded to a power of two. "exact": not at all. "ceil": up, so that nothing
# saturates (DeepGEMM ue8m0, MX "RCEIL"). "floor": the exponent of the largest value minus the
# element's own (OCP MX 1.0, section 6.3). "even": as floor, after rounding the largest value to
# the element's mantissa.
ROUNDINGS = ("exact", "ceil", "floor", "even")
# How the scales of fused shards become one, for a kernel that takes only one. "max": multipliers;
# "min": divisors; "same": refuse unless all are equal.
FOLDS = ("max", "min", "same")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantSpec:
    """How one tensor [N, K] is encoded; a stored code q means ``scale * (q - zero)``."""

    element: str  # key of ELEMENTS
    rows: int | None = None  # rows that share one scale; None = all of them
    cols: int | None = None  # columns that share one scale; None = all of them
    scale: str = "f32"  # one of SCALES
    rounding: str = "exact"  # one of ROUNDINGS
    zero: bool = False  # has an integer zero point of the scale's grid
    act_order: bool = False  # an index names each column's group; without it, cols in a row
    dynamic: bool = False  # computed from the values at run time, never stored
    fold: str = "max"  # one of FOLDS

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
        if wrong:
            raise FormatError("A QuantSpec has impossible fields.", why=wrong, todo="Correct them.")

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
        return ceil(n / (self.rows or max(n, 1))), ceil(k / (self.cols or max(k, 1)))

    def __str__(self) -> str:
        tile = f"{self.rows or '*'}x{self.cols or '*'}"
        marks = (
            (self.scale, self.scale != "f32"),
            (self.rounding, self.rounding != "exact"),
            ("zero", self.zero),
            ("act-order", self.act_order),
            ("dynamic", self.dynamic),
            (f"fold-{self.fold}", self.fold != "max"),
        )
        return f"{self.element}[{tile}]" + "".join(f":{text}" for text, on in marks if on)


_PATTERN = re.compile(r"(?P<element>\w+)\[(?P<rows>\d+|\*)x(?P<cols>\d+|\*)\](?P<marks>(:[\w-]+)*)")


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
    words = (*SCALES, *ROUNDINGS, "zero", "act-order", "dynamic")
    unknown = [mark for mark in marks if mark not in words and not mark.startswith("fold-")]
    if unknown:
        raise FormatError(
            f"{text!r} has unknown marks {unknown}.", todo="See QuantSpec for the words."
        )
    return QuantSpec(
        element=match["element"],
        rows=None if match["rows"] == "*" else int(match["rows"]),
        cols=None if match["cols"] == "*" else int(match["cols"]),
        scale=next((s for s in SCALES if s in marks), "f32"),
        rounding=next((r for r in ROUNDINGS if r in marks), "exact"),
        zero="zero" in marks,
        act_order="act-order" in marks,
        dynamic="dynamic" in marks,
        fold=folds[0] if folds else "max",
    )
