"""Fit: layers whose shape a dialect cannot store are found before anything is written."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from quantdock.convert.dialect import Dialect
from quantdock.errors import ConfigError, few
from quantdock.formats import ELEMENTS
from quantdock.plan.grouping import collapse_all
from quantdock.schemes import Scheme

_MOST = 8  # layers that are named in full
_GROUPS = (128, 64, 32, 16)  # that are proposed


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
    """Return the options that leave these layers out, or fewer of them in smaller groups."""
    todo = f"Leave them as they are: {_ignoring(names)}."
    if any(ELEMENTS[schemes[name].weight.element].is_float for name in names):
        return todo
    asked = max(schemes[name].weight.cols or shapes[name][1] for name in names)
    grouped = [n for n, s in schemes.items() if n in names or s.weight.granularity == "group"]
    left = {
        size: [n for n in grouped if [*dialect.misfits(_in_groups(schemes[n], size), *shapes[n])]]
        for size in _GROUPS
        if size < asked
    }
    size = min(left, key=lambda size: len(left[size]), default=0)  # of equals the largest
    if not size or len(left[size]) >= len(names):
        return todo
    others = f" {_ignoring(left[size])}" if left[size] else ""
    return f"{todo} Or take smaller groups: --group-size {size}{others}."


def _ignoring(names: Sequence[str]) -> str:
    last = dict.fromkeys(name.rpartition(".")[2] for name in names)
    return " ".join(f"--ignore {shlex.quote('*.' + name)}" for name in last)


def _in_groups(scheme: Scheme, size: int) -> Scheme:
    return replace(scheme, weight=replace(scheme.weight, cols=size))
