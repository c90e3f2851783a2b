"""What became of the entries of ignore lists and overrides: matched, or naming nothing."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterable
from dataclasses import dataclass

from quantdock.checkpoint.expert_names import runtime_name
from quantdock.configs.pattern import COMPONENTS, read_pattern

_KEYED = re.compile(r"\w+\[(['\"].*)\]")  # an entry of a table that gives no value
_REGEX = re.compile(r"(?:re|[+-]):(.*)")  # a regular expression, as the dialects mark it

_WILD = re.compile(r"[*?\[]")  # an entry with one is a glob


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """Entries as their config names them, such as ``ignored_layers[0] = 'lm_head'``."""

    matched: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()


def sort_entries(
    listed: Iterable[str], unmatched: Iterable[str], tensors: Iterable[str]
) -> Ignored:
    """Return the ``listed`` entries, sorted by whether they name something in the file.

    An entry that no layer matched is still no mistake where it names a module or tensor that is
    never quantized: tools list norms and router biases too.

    Args:
        tensors: the names of all tensors.
    """
    left = set(unmatched)
    matched = [entry for entry in listed if entry not in left]
    if not left:
        return Ignored(matched=tuple(matched))
    known = dict.fromkeys(other for name in tensors for other in (name, runtime_name(name)))
    names = "".join(f".{name}\n.{name.rpartition('.')[0]}\n" for name in known)
    lost = [entry for entry in listed if entry in left and not _is_named(entry_text(entry), names)]
    return Ignored(matched=tuple(matched), unmatched=tuple(lost))


def entry_text(entry: str) -> str:
    """Return what was written in the list, without the name of the list."""
    keyed = _KEYED.fullmatch(entry)
    _, equals, text = ("", "=", keyed[1]) if keyed else entry.partition(" = ")
    try:
        return str(literal_eval(text)) if equals else entry
    except (SyntaxError, ValueError):
        return text


def _is_named(text: str, names: str) -> bool:
    """Return whether ``text`` is whole components of one of ``names``, or a pattern for one."""
    if regex := _REGEX.match(text):
        return re.search(rf"^\.(?:{regex[1]})", names, re.MULTILINE) is not None
    run = text.removesuffix(".*").strip(".")
    if _WILD.search(run):
        accepts = read_pattern(run, COMPONENTS).accepts
        return any(accepts(name[1:]) for name in names.splitlines())
    run = f".{run}"
    return f"{run}." in names or f"{run}\n" in names
