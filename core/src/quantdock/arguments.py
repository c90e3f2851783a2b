"""What the arguments of public functions must be, checked before anything is done with them.

>>> @checked()
... def plan(source, ignore=(), quick=False): ...
>>> plan("folder", ignore="lm_head")
Traceback (most recent call last):
    ...
quantdock.errors.ConfigError: plan was given ignore='lm_head'.
  it must be a list of names or patterns; a str was given
Write ignore=['lm_head'].
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from numbers import Integral
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from quantdock.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")


def _as_given(value: object) -> object:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What an argument must be, in words and as a test of what ``read`` makes of it."""

    words: str
    accepts: Callable[[object], bool]
    read: Callable[[object], object] = _as_given


def instance_of(words: str, *types: type, read: Callable[[object], object] = _as_given) -> Kind:
    """Return the kind of values of ``types``, which ``words`` describes."""
    return Kind(words=words, accepts=lambda value: isinstance(value, types), read=read)


def _listed(values: object) -> object:
    """Return the members of what can be gone through, once perhaps; a mapping is no list."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        return values
    return tuple(values)


def _whole(value: object) -> object:
    """Return an int for a whole number of another library."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


def _truth(value: object) -> object:
    """Return a bool for the one of an array library."""
    is_truth = getattr(value, "dtype", None) == "bool" and getattr(value, "ndim", None) == 0
    return bool(value) if is_truth else value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_texts(values: object) -> bool:
    return isinstance(values, tuple) and all(isinstance(value, str) for value in values)


def _are_choices(value: object) -> bool:
    if not isinstance(value, Mapping):
        return value is None
    return _are_texts((*value.keys(), *value.values()))


_NOTHING = type(None)
FLAG = instance_of("True or False", bool, read=_truth)
FLAG_OR_NONE = instance_of("True, False or None", bool, _NOTHING, read=_truth)
TEXT = instance_of("a word", str)
NAME = instance_of("a name, or None", str, _NOTHING)
PATH = instance_of("the path of a folder", str, os.PathLike)
PATH_OR_NONE = instance_of("the path of a folder, or None", str, os.PathLike, _NOTHING)
SOURCE = instance_of(
    "the path of a folder or of a config.json, or its content", str, os.PathLike, Mapping
)
NAMES = Kind(words="a list of names or patterns", accepts=_are_texts, read=_listed)
CHOICES = Kind(words="a mapping, pattern -> method", accepts=_are_choices)
CALL = Kind(words="a function", accepts=callable)
CALL_OR_NONE = Kind(words="a function, or None", accepts=lambda v: v is None or callable(v))
COUNT_OR_NONE = Kind(
    words="a whole number, or None", accepts=lambda v: v is None or _is_count(v), read=_whole
)
RANKS = Kind(
    words="a number of ranks, from 1",
    accepts=lambda value: isinstance(value, int) and _is_count(value) and value > 0,
    read=_whole,
)
# What parameters of these names are wherever a function does not say otherwise. Those that are
# looked up (methods, platforms, dtypes, devices) have errors of their own, which list what exists.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "allow_reference": FLAG,
        "base": PATH_OR_NONE,
        "batch_invariant": FLAG,
        "bits": COUNT_OR_NONE,
        "choices": CHOICES,
        "exact": FLAG,
        "expert_parallel": FLAG,
        "group_size": COUNT_OR_NONE,
        "ignore": NAMES,
        "kv_cache": TEXT,
        "layers": NAME,
        "lenient": FLAG,
        "max_shard_bytes": COUNT_OR_NONE,
        "merge": FLAG,
        "on_outcome": CALL_OR_NONE,
        "path": PATH,
        "prefer": NAME,
        "quick": FLAG,
        "require": NAME,
        "source": PATH,
        "symmetric": FLAG_OR_NONE,
        "target": PATH,
        "to": TEXT,
        "track": CALL,
        "trust_remote_code": FLAG,
    }
)


def checked(**kinds: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that raises ConfigError for an argument of another kind.

    Args:
        kinds: of parameters that KINDS does not have, or has for another function.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = {**KINDS, **kinds}
        parameters = signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = None
            with suppress(TypeError):
                bound = parameters.bind(*args, **kwargs)
            if bound is None:
                return function(*args, **kwargs)  # raises, and names the function
            for name, value in bound.arguments.items():
                if (kind := known.get(name)) is None:
                    continue
                bound.arguments[name] = read = kind.read(value)
                if not kind.accepts(read):
                    raise _wrong(function.__name__, name, value, kind)
            return function(*bound.args, **bound.kwargs)

        return call

    return decorate


def _wrong(function: str, name: str, value: object, kind: Kind) -> ConfigError:
    is_alone = kind is NAMES and isinstance(value, str)
    given = type(value).__name__
    return ConfigError(
        f"{function} was given {name}={value!r:.60}.",
        why=[f"it must be {kind.words}; a {given} was given"],
        todo=f"Write {name}=[{value!r}]." if is_alone else f"Give {name} as {kind.words}.",
        field=name,
        value=value,
    )
