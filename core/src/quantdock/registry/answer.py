"""Answers of plugins with their provenance, and how two of them are told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from quantdock.errors import PluginConflictError
from quantdock.registry.plugin import Failure, Plugin
from quantdock.registry.settings import ONLY, PREFER
from quantdock.registry.spelling import spell

T = TypeVar("T")

# Ranks: the owner of the platform, a plugin of no platform, the core.
OWNER, GENERAL, CORE = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[T]):
    """What one plugin answered."""

    plugin: Plugin
    value: T
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers(Generic[T]):
    """All answers to one question, best rank first, and what went wrong while asking."""

    given: tuple[Answer[T], ...]
    errors: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What was asked, in the words that an error about a tie needs.

    ``keys`` are what ``REPLACES`` may name to break it: a method name, a platform.
    """

    text: str  # completes "A and B ..."
    keys: tuple[str, ...]
    choose: str = ""  # a setting of its own that breaks the tie


def settle(
    answers: Sequence[Answer[T]], question: Question, prefer: Sequence[str]
) -> Answer[T] | None:
    """Return the answer of the best rank, or None where nobody answered.

    Among different answers of that rank the user's preference decides, then ``REPLACES``.

    Raises:
        PluginConflictError: neither decides.
    """
    best = min((answer.rank for answer in answers), default=None)
    rivals = [answer for answer in answers if answer.rank == best]
    if not rivals or all(answer.value == rivals[0].value for answer in rivals):
        return rivals[0] if rivals else None
    for wanted in prefer:
        for answer in rivals:
            if spell(answer.plugin.distribution) == wanted:
                return answer
    standing = [answer for answer in rivals if not _is_replaced(answer, rivals, question)]
    if len(standing) == 1:
        return standing[0]
    raise conflict(standing or rivals, question)


def conflict(rivals: Sequence[Answer[T]], question: Question) -> PluginConflictError:
    """Return the error that names all ``rivals`` and every setting that breaks the tie."""
    names = [answer.plugin.distribution for answer in rivals]
    settings = ", or ".join(filter(None, (question.choose, f"{PREFER}={' or '.join(names)}")))
    return PluginConflictError(
        f"{' and '.join(str(answer.plugin) for answer in rivals)} {question.text}.",
        why=[f"{answer.plugin} says {_show(answer.value)}" for answer in rivals],
        todo=f"Set {settings}; or load only one of them with {ONLY}; or let the later one state "
        f'REPLACES = {{"{question.keys[0]}": "{names[0]}"}}.',
        distributions=tuple(names),
    )


def _is_replaced(answer: Answer[T], rivals: Sequence[Answer[T]], question: Question) -> bool:
    mine = spell(answer.plugin.distribution)
    return any(
        spell(key) in map(spell, question.keys) and spell(replaced) == mine
        for rival in rivals
        if rival is not answer
        for key, replaced in rival.plugin.replaces.items()
    )


def _show(value: object) -> str:
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    return str(value)
