"""Fit: layers whose shape a dialect cannot store are found before anything is written."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd

from quantdock.convert.dialect import Dialect
from quantdock.errors import ConfigError, few
from quantdock.formats import ELEMENTS
from quantdock.plan.grouping import collapse_all
from quantdock.schemes import Scheme

_MOST = 8  # layers that are named in full
_SMALLEST_GROUP, _LARGEST_GROUP = 16, 128  # that are proposed


def require_fit(
    dialect: Dialect, schemes: Mapping[str, Scheme], shapes: Mapping[str, Sequence[int]]
) -> None:
    """Raise where ``dialect`` cannot store a layer of its shape.

    Args:
        schemes: prefix -> scheme of the layers to be written. shapes: prefix -> (n, k).
    Raises:
        ConfigError: naming the layers, why each does not fit, and what would.
    """
    wrong: dict[str, list[str]] = {}  # why -> prefixes
    for prefix, scheme in schemes.items():
        n, k = shapes[prefix]
        for reason in dialect.misfits(scheme, n, k):
            wrong.setdefault(reason, []).append(prefix)
    if not wrong:
        return
    names = tuple(dict.fromkeys(name for prefixes in wrong.values() for name in prefixes))
    count = "1 layer does" if len(names) == 1 else f"{len(names)} layers do"
    raise ConfigError(
        f"{count} not fit {dialect.name}.",
        why=[f"{few(collapse_all(p), _MOST)}: {reason}" for reason, p in wrong.items()],
        todo=_todo(names, dialect, schemes, shapes),
        names=names,
    )


def _todo(
    names: Sequence[str],
    dialect: Dialect,
    schemes: Mapping[str, Scheme],
    shapes: Mapping[str, Sequence[int]],
) -> str:
    """Return the options that leave these layers out, and a group size that they would fit."""
    last = dict.fromkeys(name.rpartition(".")[2] for name in names)
    ignored = " ".join(f"--ignore {shlex.quote('*.' + name)}" for name in last)
    todo = f"Leave them as they are: {ignored}."
    size = gcd(*(shapes[name][1] for name in names), _LARGEST_GROUP)
    if any(ELEMENTS[schemes[name].weight.element].is_float for name in names):
        return todo
    smaller = {name: _in_groups(schemes[name], size) for name in names}
    if size >= _SMALLEST_GROUP and not any(
        reason for name in names for reason in dialect.misfits(smaller[name], *shapes[name])
    ):
        todo += f" Or take smaller groups: --group-size {size}."
    return todo


def _in_groups(scheme: Scheme, size: int) -> Scheme:
    return replace(scheme, weight=replace(scheme.weight, cols=size))
