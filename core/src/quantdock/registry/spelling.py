"""How names are compared, and which known name a mistyped one is closest to."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache


@lru_cache(maxsize=1024)
def spell(name: str) -> str:
    """Return the form in which two names are compared: lower case, hyphens for underscores.

    >>> spell(" Compressed_Tensors")
    'compressed-tensors'
    """
    return name.strip().lower().replace("_", "-")


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` most resembles, or None where none is near.

    In a short name one other letter is much.

    >>> closest("fp9", ["awq", "fp8"]), closest("phone", ["none"])
    ('fp8', None)
    """
    by_form = {spell(candidate): candidate for candidate in known}
    form = spell(name)
    near = get_close_matches(form, by_form, n=1, cutoff=0.6 if len(form) == 3 else 0.7)
    return by_form[near[0]] if near else None
