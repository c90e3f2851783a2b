"""Substitutions as facts: the scheme that a platform runs in the place of another.

>>> from quantdock.platform import Platform
>>> from quantdock.schemes import SpecSet, parse_scheme
>>> fp8 = SpecSet(elements=frozenset({"fp8_e4m3"}))
>>> row = Substitution(
...     name="fp8_weight_only",
...     source=SchemeSet(weight=fp8, activation=fp8),
...     change="weight_only",
...     lacks=frozenset({"fp8_mma"}),
...     why="the device has no fp8 tensor cores",
...     accuracy="closer to 16-bit than asked",
... )
>>> scheme = parse_scheme("fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic")
>>> row.applies(scheme, Platform(name="cuda", arch="sm_80", device="cuda"))
True
>>> str(row.result(scheme))
'fp8_e4m3[*x*]'
"""

from __future__ import annotations

from dataclasses import dataclass

from quantdock.fields import require_right, wrong_kind, wrong_word, wrong_words
from quantdock.platform import Platform
from quantdock.schemes import Scheme, SchemeSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitution:
    """A declared change of scheme: what a platform runs instead, why, and what it costs."""

    name: str
    source: SchemeSet  # the schemes it replaces
    change: str  # key of CHANGES: how the new scheme follows from the old
    needs: frozenset[str] = frozenset()  # features the platform must have
    lacks: frozenset[str] = frozenset()  # features the platform must not all have
    needs_kernel: bool = False  # only where a kernel that is no reference runs the new scheme
    why: str
    accuracy: str

    def __post_init__(self) -> None:
        require_right(
            self,
            [
                *wrong_kind("source", self.source, SchemeSet),
                *wrong_word("change", self.change, tuple(CHANGES)),
                *wrong_words("needs", self.needs),
                *wrong_words("lacks", self.lacks),
            ],
        )

    def applies(self, scheme: Scheme, platform: Platform) -> bool:
        """Return whether ``platform`` replaces ``scheme`` by this row."""
        return (
            not self.source.why_not(scheme)
            and self.needs <= platform.features
            and not (self.lacks and self.lacks <= platform.features)
        )

    def result(self, scheme: Scheme) -> Scheme:
        """Return the scheme that is executed instead."""
        return CHANGES[self.change](scheme)


CHANGES = {"weight_only": Scheme.weight_only, "int8_per_token": Scheme.with_int8_tokens}
