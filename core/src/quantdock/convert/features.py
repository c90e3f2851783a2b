"""What a scheme may have that a dialect has no place for, told by the scheme without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from quantdock.convert.dialect import Dialect
from quantdock.formats import SecondScale
from quantdock.schemes import Scheme


def _with_stored_second(scheme: Scheme) -> Scheme:
    activation = scheme.activation
    if activation is None or activation.second is None or not activation.second.dynamic:
        return scheme
    return replace(scheme, activation=replace(activation, second=SecondScale()))


_FEATURES: tuple[tuple[str, Callable[[Scheme], Scheme]], ...] = (
    (
        "the second scale of its inputs is computed at run time, and files store one",
        _with_stored_second,
    ),
    (
        "its groups are in act-order: an index (g_idx) names the group of each column",
        lambda scheme: replace(scheme, weight=replace(scheme.weight, act_order=False)),
    ),
    (
        "its inputs are multiplied first, by a number for each column",
        lambda scheme: replace(scheme, input_multiplier=False),
    ),
    ("its inputs are quantized", lambda scheme: scheme.weight_only()),
    (
        "a scale serves {cols} columns",
        lambda scheme: replace(scheme, weight=replace(scheme.weight, cols=None, act_order=False)),
    ),
)


def lacking(dialects: Sequence[Dialect], schemes: Mapping[str, Scheme]) -> Iterator[str]:
    """Yield of each scheme (by prefix) the first feature without which a dialect has words."""
    for scheme, prefix in {scheme: prefix for prefix, scheme in schemes.items()}.items():
        if _has_words(dialects, prefix, scheme):
            continue
        for text, without in _FEATURES:
            other = without(scheme)
            if other != scheme and _has_words(dialects, prefix, other):
                yield f"{prefix}: {text.format(cols=scheme.weight.cols)}"
                break


def _has_words(dialects: Sequence[Dialect], prefix: str, scheme: Scheme) -> bool:
    return any(not dialect.why_not({prefix: scheme}) for dialect in dialects)
