"""Pattern: one entry of an ignore list, a target list or a per-layer override, as read.

>>> read_pattern("model.layers.1.mlp", COMPONENTS).parts
('model', 'layers', '1', 'mlp')
>>> pattern = read_pattern("model.layers.*.self_attn", ROOTED)
>>> pattern.parts, pattern.accepts("model.layers.3.self_attn.q_proj")
(('layers',), True)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import translate

from quantdock.errors import ConfigError

# Components that stand before a language model's own names in some files and not in others.
WRAPPERS = frozenset({"model", "language_model", "text_model", "llm", "thinker"})
_WILD = re.compile(r"[*?\[]")
# The literal beginning of a regular expression, and what may make its last character optional.
_LITERAL = re.compile(r"\^?((?:[\w-]|\\[.-])*)([*+?{]?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a checkpoint dialect reads its entries.

    ``re:...`` is a regular expression over the whole name; an entry with ``*``, ``?`` or ``[`` a
    glob over the whole name; any other a run of dotted components. Globs and runs also cover what
    lies below the name they match.
    """

    anywhere: bool = True  # a run may begin at any component of a name; False: at its first
    full_regex: bool = False  # a regular expression must match to the end of the name
    class_names: bool = False  # an entry may be the name of a layer's class


COMPONENTS = Dialect()  # fp8, awq, gptq, bitsandbytes; what users write
ROOTED = Dialect(anywhere=False)  # modelopt, mxfp4
CLASSES = Dialect(anywhere=False, class_names=True)  # compressed-tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One entry, ready to be compared.

    Attributes:
        parts: the literal components a name must have, in a row.
        anywhere: the row may begin at any component; False: at the first, or the first of the core.
        matches: what the whole name must satisfy besides, in one of its forms; None: nothing.
        num_forms: how many of the name's forms count, from the first.
        rank: sorts the entries that match one name, the most specific first.
    """

    parts: tuple[str, ...]
    anywhere: bool = False
    matches: Callable[[str], object] | None = None
    num_forms: int = 1
    rank: tuple[int, int] = (0, 0)

    def accepts(self, name: str) -> bool:
        """Return whether ``name`` satisfies what is asked besides ``parts``."""
        matches = self.matches
        if matches is None or matches(name):
            return True
        return self.num_forms > 1 and any(
            matches(form) for form in _other_forms(name, self.num_forms)
        )


def read_pattern(text: str, dialect: Dialect, source: str = "") -> Pattern:
    """Return what the entry ``text`` means in ``dialect``; ``source`` is where it is written.

    Raises:
        ConfigError: it is a regular expression with an error.
    """
    if text.startswith("re:"):
        return _read_regex(text.removeprefix("re:"), dialect, source)
    text = text.strip().replace("/", ".").strip(".").removesuffix(".weight")
    whole = text.endswith(".*")  # "x.*" means all of x
    text = text.removesuffix(".*")
    if _WILD.search(text):
        return _read_glob(text)
    parts = tuple(text.split("."))
    return Pattern(parts=parts, anywhere=dialect.anywhere and not whole, rank=(0, -len(parts)))


def core_depth(parts: Sequence[str]) -> int:
    """Return how many components at the beginning of ``parts`` only wrap the model.

    What follows them is the core; it has at least one component.
    """
    depth = 0
    while depth < len(parts) - 1 and parts[depth] in WRAPPERS:
        depth += 1
    return depth


def _other_forms(name: str, num_forms: int) -> tuple[str, ...]:
    """Return the core of ``name``, and the core after ``model.``, where they differ from it."""
    parts = name.split(".")
    core = ".".join(parts[core_depth(parts) :])
    return tuple(form for form in (core, f"model.{core}")[: num_forms - 1] if form != name)


def _read_glob(text: str) -> Pattern:
    """Return a shell glob; its ``*`` crosses dots."""
    parts = text.split(".")
    depth = core_depth(parts)
    if _WILD.match(parts[depth]):
        depth = 0  # "model.*.mlp" must not become "*.mlp"
    parts = parts[depth:]
    literal = next(i for i, part in enumerate(parts) if _WILD.search(part))
    glob = ".".join(parts)
    floats = glob.startswith("*")  # and so it covers what wraps the core
    written = translate(glob.lstrip("*"))  # "(?s:...)" and the end of the text
    compiled = re.compile(rf"{written[: written.rindex(')') + 1]}(?:\..*)?\Z")
    return Pattern(
        parts=tuple(parts[:literal]),
        matches=compiled.search if floats else compiled.match,
        num_forms=1 if floats else 2,
        rank=(1, -len(_WILD.sub("", text))),
    )


def _read_regex(text: str, dialect: Dialect, source: str) -> Pattern:
    try:
        compiled = re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"{source or 'An entry'} is no regular expression: {error}.",
            why=[f"it reads {text!r}"],
            todo="Correct it, or drop 're:' to match a name as it is written.",
            field=source,
        ) from error
    # "Anything but model.x" would match model.x once the wrapper is taken off.
    only_as_written = text.startswith(".*") or "(?!" in text or "(?<!" in text
    return Pattern(
        parts=_leading_core(text),
        matches=compiled.fullmatch if dialect.full_regex else compiled.match,
        num_forms=1 if only_as_written else 3,
        rank=(2, 0),
    )


def _leading_core(text: str) -> tuple[str, ...]:
    """Return literal components with which the core of every name that can match begins."""
    match = _LITERAL.match(text)
    if match is None or "|" in text:
        return ()
    literal, quantifier = re.sub(r"\\(.)", r"\1", match[1]), match[2]
    leading = literal[: -1 if quantifier else None].split(".")  # the last one may be incomplete
    return tuple(leading[core_depth(leading) : -1])
