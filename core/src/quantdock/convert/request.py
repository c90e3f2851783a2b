"""What a user asks of a conversion, checked before a file is opened."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from quantdock.configs.online import NONE
from quantdock.convert.compressed import COMPRESSED
from quantdock.convert.deciding import Deciding
from quantdock.convert.dialect import Dialect
from quantdock.convert.goals import GOALS, USUAL, WHOLE_ROW, Integers
from quantdock.errors import ConfigError
from quantdock.formats import ELEMENTS
from quantdock.registry.names import NAMES
from quantdock.registry.spelling import closest, spell
from quantdock.schemes import Scheme

WORDS = (*GOALS, NONE)
_ROWS = {spell(row.name): row for row in NAMES}
_CAUSES = {
    "fp8": "fp8 is whichever of these a device runs best, and a file has to be one of them",
}
# Formats that no library writes in files which another reads.
_NO_FORM = {
    spell("mxint8"): "MXINT8 has no file form: tools that name it emulate it",
    spell("mxfp6_e3m2"): "fp6_e3m2 is in Quark's own files alone; mxfp6 stands for e2m3",
}
_MEANT = {spell(row.name): row.alias_of for row in NAMES if row.alias_of is not None}
# What other tools call the goals, and what has no form of its own.
_MEANT |= {
    **{spell(f"{word}a16"): word for word in ("mxfp4", "mxfp6", "nvfp4")},
    **{spell(f"{word}_online"): word for word in ("mxfp4", "nvfp4")},
    **{spell(word): "modelopt" for word in ("modelopt_fp4", "petit_nvfp4")},
    spell("quark_mxfp4"): "quark",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A conversion as it was asked for.

    Attributes:
        to: a key of GOALS, or "none" to decode a quantized checkpoint.
        ignore: patterns of layers to copy as they are.
        choices: pattern -> another key of GOALS, or "none".
        integers: the options of ``to``, where it stands for integers.
        max_shard_bytes: of one file of weights; None: as the files of the input.
        exact: a quantized input becomes this without a change of value, or not at all.
    """

    to: str
    ignore: tuple[str, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)
    integers: Integers = USUAL
    max_shard_bytes: int | None = None
    exact: bool = False

    @property
    def dialect(self) -> Dialect:
        """Return how the output is written."""
        return GOALS[self.to].dialect

    def scheme(self, word: str) -> Scheme:
        """Return what ``word`` stands for here; options are for ``to`` alone."""
        return GOALS[word].scheme(word, self.integers if word == self.to else USUAL)

    def deciding(self) -> Deciding:
        """Return the config that decides about each layer of a 16-bit checkpoint."""
        words = dict.fromkeys((self.to, *self.choices.values()))
        schemes = {word: self.scheme(word) for word in words if word != NONE}
        experts = GOALS[self.to].takes_experts
        return Deciding(self.to, schemes, self.ignore, self.choices, takes_experts=experts)

    def to_json(self) -> dict[str, Any]:
        """Return the request as a later run compares it."""
        return {
            "to": self.to,
            "ignore": list(self.ignore),
            "choices": dict(self.choices),
            **asdict(self.integers),
            "max_shard_bytes": self.max_shard_bytes,
            "exact": self.exact,
        }


def read_request(
    to: str,
    ignore: Sequence[str] = (),
    choices: Mapping[str, str] | None = None,
    max_shard_bytes: int | None = None,
    integers: Integers = USUAL,
    *,
    exact: bool = False,
) -> Request:
    """Return the request; spellings of method names are understood as everywhere.

    Raises:
        ConfigError: a word that stands for no fixed scheme, an option that it does not have, or a
            choice that the format to be written cannot express.
    """
    words = {
        pattern: _word(word, f"--choose {pattern}") for pattern, word in (choices or {}).items()
    }
    request = Request(
        to=_word(to, "--to"),
        ignore=tuple(ignore),
        choices=words,
        integers=integers,
        max_shard_bytes=max_shard_bytes,
        exact=exact,
    )
    if max_shard_bytes is not None and max_shard_bytes < 1:
        raise ConfigError(
            f"A shard cannot have {max_shard_bytes} bytes at most.",
            todo="Leave --max-shard-size out to keep the files of the input.",
        )
    if request.to == NONE:
        _refuse_patterns(request)
    else:
        _refuse_foreign_choices(request)
    return request


def _word(word: str, option: str) -> str:
    meant = _MEANT.get(spell(word), word)
    for spelled in map(spell, (word, meant)):
        for known in WORDS:
            if spell(known) == spelled:
                return known
    why = [f"known: {', '.join(WORDS)}"]
    if (no_form := _NO_FORM.get(spell(word))) is not None:
        why.append(no_form)
    near = closest(word, WORDS)
    todo = f"Did you mean {near}?" if near else "Choose one of these."
    if (row := _ROWS.get(spell(meant))) is not None:
        why.append(_CAUSES.get(row.name, f"{row.name} is {row.summary}; it is not written"))
        loads = f", or quantize while loading: -q {row.name}" if row.online and row.target else ""
        todo = f"Choose one of the known{loads}."
    raise ConfigError(
        f"{option} is {word!r}, which is nothing that can be written.",
        why=why,
        todo=todo,
        field=option,
        value=word,
    )


def _refuse_patterns(request: Request) -> None:
    if request.ignore or request.choices or any(request.integers.given()):
        raise ConfigError(
            "--to none decodes every layer.",
            why=["--ignore, --choose and the options of integers say how layers are quantized"],
            todo="Leave them out.",
        )


def _refuse_foreign_choices(request: Request) -> None:
    """Raise where a choice asks for a scheme that the format of ``to`` has no words for."""
    dialect = request.dialect
    words = dict.fromkeys((request.to, *(w for w in request.choices.values() if w != NONE)))
    if why := dialect.why_not({word: request.scheme(word) for word in words}):
        first = next(word for word in words if word != request.to)
        mixed = _in_compressed(request, first)
        raise ConfigError(
            f"{request.to} is written as {dialect.name}, which cannot hold {first} beside it.",
            why=why,
            todo=f"compressed-tensors can mix them: {mixed}."
            if mixed
            else f"Leave the choice of {first} out.",
            field="choices",
        )


def _in_compressed(request: Request, first: str) -> str:
    """Return the options that write the same mixture as compressed-tensors; empty: none do."""
    schemes = {word: request.scheme(word) for word in request.choices.values() if word != NONE}
    schemes[request.to] = request.scheme(request.to)
    if request.dialect is COMPRESSED or COMPRESSED.why_not(schemes):
        return ""
    choices = dict(request.choices)
    to = _compressed_word(schemes[request.to])
    if not to:  # the layers that nothing names are a choice, too; it has no options
        to, choices = _compressed_word(schemes[first]), {"*": request.to, **choices}
    chosen = (f" --choose {shlex.quote(f'{pattern}={word}')}" for pattern, word in choices.items())
    return f"--to {to}{''.join(chosen)}" if to else ""


def _compressed_word(scheme: Scheme) -> str:
    """Return the word, with options, by which compressed-tensors writes ``scheme``; or nothing."""
    goals = {word: goal for word, goal in GOALS.items() if goal.dialect is COMPRESSED}
    if word := next((word for word, goal in goals.items() if goal.scheme(word) == scheme), ""):
        return word
    spec = scheme.weight
    asked = Integers(
        bits=ELEMENTS[spec.element].bits,
        group_size=WHOLE_ROW if spec.cols is None else spec.cols,
        symmetric=not spec.zero,
    )
    usual = goals[COMPRESSED.name]
    if ELEMENTS[spec.element].is_float or usual.scheme(COMPRESSED.name, asked) != scheme:
        return ""
    return f"{COMPRESSED.name} {' '.join(asked.given())}"
