"""What the fields of a plugin's descriptors must be, told where a descriptor is written.

A misspelled word in a set would match nothing, or all letters of it something, and nobody would
hear of it.

>>> wrong_words("elements", frozenset({"fp8_e4m3fn"}), ("fp8_e4m3", "int8"))
["elements has 'fp8_e4m3fn'; known: fp8_e4m3, int8 (did you mean fp8_e4m3?)"]
>>> wrong_words("requires", "wgmma")
["requires='wgmma' is no set of words: write frozenset({'wgmma'})"]
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from quantdock.errors import DescriptorError


def wrong_words(field: str, value: object, known: Collection[str] = ()) -> list[str]:
    """Return what is wrong with a frozenset of words; ``known`` are all it may have, if any."""
    if not isinstance(value, frozenset) or not all(isinstance(word, str) for word in value):
        words = value if isinstance(value, set | list | tuple) else (value,)
        text = ", ".join(sorted(map(repr, words)))
        return [f"{field}={value!r} is no set of words: write frozenset({{{text}}})"]
    return [wrong for word in sorted(value) for wrong in wrong_word(field, word, known)]


def wrong_word(field: str, word: object, known: Collection[str]) -> list[str]:
    """Return what is wrong with a word that must be one of ``known``, if there are any."""
    if not known or word in known:
        return []
    near = get_close_matches(str(word), known, n=2)  # one alone may be another: fp8_e4m3fn
    meant = f" (did you mean {' or '.join(near)}?)" if near else ""
    return [f"{field} has {word!r}; known: {', '.join(known)}{meant}"]


def wrong_kind(field: str, value: object, *kinds: type) -> list[str]:
    """Return what is wrong with a value that must be of one of ``kinds``."""
    if isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds):
        return []
    expected = " or ".join(kind.__name__ for kind in kinds)
    return [f"{field}={value!r} is of type {type(value).__name__}, not {expected}"]


def wrong_tuple(field: str, value: object, kind: type) -> list[str]:
    """Return what is wrong with a value that must be a tuple of ``kind``."""
    if isinstance(value, tuple) and all(isinstance(member, kind) for member in value):
        return []
    return [f"{field}={value!r} is no tuple of {kind.__name__}"]


def wrong_count(field: str, value: object) -> list[str]:
    """Return what is wrong with a whole number from 1."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return [] if is_count else [f"{field}={value!r} is no whole number from 1"]


def require_right(descriptor: object, wrong: Sequence[str]) -> None:
    """Raise if something is wrong with the fields of ``descriptor``.

    Raises:
        DescriptorError: names the descriptor and all of ``wrong``.
    """
    if wrong:
        kind, name = type(descriptor).__name__, getattr(descriptor, "name", None)
        raise DescriptorError(
            f"{kind} {name} has impossible fields."
            if name
            else f"This {kind} has impossible fields.",
            why=wrong,
            todo="Correct it in the plugin that writes it.",
        )
