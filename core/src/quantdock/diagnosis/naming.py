"""How layers and tensors are spoken of: alike ones as one pattern, a few of many.

>>> name_layers(["model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"])
'2 layers (model.layers.{0-1}.mlp.up_proj)'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from quantdock.errors import few
from quantdock.plan.grouping import collapse_all

_SHOWN = 3


def name_layers(names: Sequence[str], word: str = "layer") -> str:
    """Return how many layers there are and which, numbers collapsed; one by its name."""
    if len(names) == 1:
        return names[0]
    return f"{len(names):,} {word}s ({few(collapse_all(names), _SHOWN)})"


def by_text(pairs: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    """Return text -> names of ``pairs`` (text, name), in their order."""
    grouped: dict[str, list[str]] = {}
    for text, name in pairs:
        grouped.setdefault(text, []).append(name)
    return grouped


def percent(share: float) -> str:
    """Return a share for people; what is absurdly large is not spelled out.

    >>> percent(0.0312), percent(2.5e7)
    ('3.1%', 'over 10,000%')
    """
    return f"{share:.1%}" if share <= 100 else "over 10,000%"
