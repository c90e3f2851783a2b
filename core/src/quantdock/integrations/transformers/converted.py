"""Tensors of a model that transformers makes of several of a file, such as stacked experts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from torch import Tensor

from quantdock.errors import LoadError, few
from quantdock.integrations.transformers.names import Conversion


def convert(
    full: str, conversion: Conversion, model: Any, read: Callable[[str], Tensor]
) -> dict[str, Tensor]:
    """Return the tensor ``full`` of ``model``, and what else is made of the same, by name.

    Args:
        read: returns the plain tensor of a name in the checkpoint.
    Raises:
        LoadError: what is stored does not go together; names what is unlike the rest.
    """
    converter = conversion.fresh()
    for source, pattern in conversion.sources:
        converter.add_tensor(full, source, pattern, lambda source=source: read(source))
    try:
        made = converter.convert(full, model=model, config=model.config)
    except (RuntimeError, ValueError, IndexError) as error:
        raise LoadError(
            f"{full} cannot be made of what the checkpoint stores.",
            why=[_unlike(conversion, read) or str(error).splitlines()[0]],
            todo="Load the weights that belong to this config.json.",
            names=(full,),
        ) from error
    return {key: value[0] if isinstance(value, list) else value for key, value in made.items()}


def _unlike(conversion: Conversion, read: Callable[[str], Tensor]) -> str:
    """Return which tensors have another shape than most of their pattern; empty: none."""
    alike: dict[str, list[tuple[str, tuple[int, ...]]]] = defaultdict(list)
    for source, pattern in conversion.sources:
        alike[pattern].append((source, tuple(read(source).shape)))
    told = []
    for members in alike.values():
        usual, _ = Counter(shape for _, shape in members).most_common(1)[0]
        told += [f"{n} is {list(s)}, others are {list(usual)}" for n, s in members if s != usual]
    return few(told, separator="; ")
