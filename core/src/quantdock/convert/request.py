"""What a user asks of a conversion, checked before a file is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from quantdock.configs.mxfp8 import Mxfp8Config
from quantdock.configs.online import (
    NONE,
    Fp8PerBlockConfig,
    Fp8PerChannelConfig,
    Fp8PerTensorConfig,
    OnlineConfig,
)
from quantdock.convert.compressed import COMPRESSED
from quantdock.convert.dialect import Dialect
from quantdock.convert.fine_grained import FINE_GRAINED
from quantdock.errors import ConfigError
from quantdock.registry.names import NAMES
from quantdock.registry.spelling import closest, spell
from quantdock.schemes import Scheme
from quantdock.schemes.shorthands import SHORTHANDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What one word for --to means: how layers are decided, and how they are written."""

    config: type[OnlineConfig]
    dialect: Dialect


GOALS: Mapping[str, Goal] = MappingProxyType(
    {
        "fp8_per_tensor": Goal(config=Fp8PerTensorConfig, dialect=COMPRESSED),
        "fp8_per_channel": Goal(config=Fp8PerChannelConfig, dialect=COMPRESSED),
        "fp8_per_block": Goal(config=Fp8PerBlockConfig, dialect=FINE_GRAINED),
        "mxfp8": Goal(config=Mxfp8Config, dialect=COMPRESSED),
    }
)
WORDS = (*GOALS, NONE)
_MEANT = {spell(row.name): row.alias_of for row in NAMES if row.alias_of is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A conversion as it was asked for.

    Attributes:
        to: a key of GOALS, or "none" to decode a quantized checkpoint.
        ignore: patterns of layers to copy as they are.
        choices: pattern -> another key of GOALS, or "none".
        max_shard_bytes: of one file of weights; None: as the files of the input.
    """

    to: str
    ignore: tuple[str, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)
    max_shard_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the request as a later run compares it."""
        return {
            "to": self.to,
            "ignore": list(self.ignore),
            "choices": dict(self.choices),
            "max_shard_bytes": self.max_shard_bytes,
        }


def read_request(
    to: str,
    ignore: Sequence[str] = (),
    choices: Mapping[str, str] | None = None,
    max_shard_bytes: int | None = None,
) -> Request:
    """Return the request; spellings of method names are understood as everywhere.

    Raises:
        ConfigError: a word that stands for no fixed scheme, or a choice that the format to be
            written cannot express.
    """
    words = {
        pattern: _word(word, f"--choose {pattern}") for pattern, word in (choices or {}).items()
    }
    request = Request(
        to=_word(to, "--to"),
        ignore=tuple(ignore),
        choices=words,
        max_shard_bytes=max_shard_bytes,
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


def fixed_scheme(word: str) -> Scheme:
    """Return the scheme that files of this kind are in: the first that the word stands for."""
    return SHORTHANDS[word][0]


def _word(word: str, option: str) -> str:
    meant = _MEANT.get(spell(word), word)
    for known in WORDS:
        if spell(known) == spell(meant):
            return known
    near = closest(word, WORDS)
    why = [f"known: {', '.join(WORDS)}"]
    if spell(word) == "fp8":
        why.append("fp8 is whichever of these a device runs best, and a file has to be one of them")
    raise ConfigError(
        f"{option} is {word!r}, which is nothing that can be written.",
        why=why,
        todo=f"Did you mean {near}?" if near else "Choose one of these.",
        field=option,
        value=word,
    )


def _refuse_patterns(request: Request) -> None:
    if request.ignore or request.choices:
        raise ConfigError(
            "--to none decodes every layer.",
            why=["--ignore and --choose are for layers to be quantized otherwise"],
            todo="Leave them out.",
        )


def _refuse_foreign_choices(request: Request) -> None:
    """Raise where a choice asks for a scheme that the format of ``to`` has no words for."""
    dialect = GOALS[request.to].dialect
    words = dict.fromkeys((request.to, *(w for w in request.choices.values() if w != NONE)))
    if why := dialect.why_not({word: fixed_scheme(word) for word in words}):
        first = next(word for word in words if word != request.to)
        pattern = next(p for p, word in request.choices.items() if word == first)
        raise ConfigError(
            f"{request.to} is written as {dialect.name}, which cannot hold {first} beside it.",
            why=why,
            todo=f"compressed-tensors can mix them: --to {first} --choose '*={request.to}' "
            f"--choose '{pattern}={first}'.",
            field="choices",
        )
