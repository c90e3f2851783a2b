"""MethodName: one row of the table of names that users of any engine may type."""

from __future__ import annotations

from dataclasses import dataclass

from quantdock.fields import require_right, wrong_words
from quantdock.platform import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodName:
    """One method name: supported (``target``), an alias, or known and not yet (``remedy``).

    Exactly one of ``target``, ``alias_of`` and ``remedy`` is given.
    """

    name: str
    summary: str  # one line for tables: what it is
    target: str | None = None  # "module:Class" of its config
    alias_of: str | None = None
    remedy: str | None = None  # what a user can do until it is supported
    online: bool = False  # may quantize a 16-bit checkpoint at load
    serialized: bool = True  # may be what a checkpoint says of itself
    at_load: str = ""  # the name for 16-bit weights, or for all layers, where this one is not
    on_disk: bool = False  # not at load, but ``quantdock convert --to`` writes it
    platforms: frozenset[str] | None = None  # families it is for; None: all

    def __post_init__(self) -> None:
        given = [n for n in ("target", "alias_of", "remedy") if getattr(self, n) is not None]
        wrong = wrong_words("platforms", self.platforms) if self.platforms is not None else []
        if len(given) != 1:
            has = " and ".join(given) or "none"
            wrong.append(f"exactly one of target, alias_of and remedy is given; it has {has}")
        require_right(self, wrong)

    def is_for(self, platform: Platform) -> bool:
        """Return whether the row says anything of ``platform``."""
        return self.platforms is None or platform.name in self.platforms
