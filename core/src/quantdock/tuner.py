"""Tuner: what measures, on this machine, the ways in which kernels can compute a product.

A plugin whose kernels have a choice answers ``get_tuner`` with the target of a class that keeps
``Tuner``. What it measures it stores, case by case, where its kernels look for it.

>>> fast, slow = Timed(way="16x64x128 swap", us=9.0), Timed(way="library", us=13.5)
>>> slow.us / fast.us
1.5
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from quantdock.platform import Platform
from quantdock.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One way to compute a product, in the plugin's words, and the time that it took."""

    way: str
    us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One case after it was measured, and stored unless it failed.

    Attributes:
        rows: M of the product.
        before: the way that was taken until now, measured beside the others; None: it failed.
        after: the fastest; None: all failed.
        num_tried: ways that were measured.
        remarks: what could not be measured, and why.
    """

    problem: Problem
    rows: int
    before: Timed | None
    after: Timed | None
    num_tried: int
    remarks: tuple[str, ...] = ()


class TuningRun(Protocol):
    """What is to be measured, in cases of one layer shape and number of rows."""

    num_cases: int
    num_known: int  # cases that were measured before, and are left out
    num_steps: int  # in which progress is told

    def measure(self, advance: Callable[[int], object]) -> Iterator[Measured]:
        """Yield each case once it is stored; ``advance`` is told how many steps were made.

        A case that cannot be measured, for lack of memory say, is yielded with its reasons.
        """
        ...


class Tuner(Protocol):
    """Measures on the device of a platform that was found on this machine."""

    rows: tuple[int, ...]  # M that are measured where the user names none

    def __init__(self, platform: Platform) -> None: ...

    def why_not(self, kernel: str, problem: Problem) -> str:
        """Return why there is nothing to choose for ``problem`` on ``kernel``; empty: there is."""
        ...

    def plan(
        self, problems: Sequence[Problem], rows: Sequence[int], *, thorough: bool, again: bool
    ) -> TuningRun:
        """Return what is to be measured.

        Args:
            thorough: try every way that may be fast, not only those that probably are.
            again: measure what was measured before, too.
        """
        ...

    def state(self) -> str:
        """Return one sentence: what is known of this device, and where that is stored."""
        ...
