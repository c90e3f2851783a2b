"""Policy: the user's say when a kernel is chosen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the user allows and asks for when a kernel is chosen."""

    exact: bool = False  # forbid substitutions
    prefer: str | None = None  # kernel name: take it where it can run, else warn
    require: str | None = None  # kernel name: take it or fail
    allow_reference: bool = False  # on accelerators too
    batch_invariant: bool = False  # no row of a result depends on the rows beside it
