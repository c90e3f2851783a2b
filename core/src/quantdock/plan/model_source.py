"""What the source of a model's classes shows of its layers, read without importing it.

Some classes multiply by the weight of a layer that they never call, so that it has to stay plain.
Loading asks the classes themselves; a plan, which needs no torch, reads the file they stand in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

PRODUCT = re.compile(r"\bself\.(\w+)\.weight\s*@")  # as in Mamba's mixers
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


def multiplied(owner: str) -> str:
    """Return why a layer by whose weight the class ``owner`` multiplies itself is kept."""
    return f"{owner} multiplies by its weight without calling it"


@lru_cache
def kept_layers(model_type: str) -> Mapping[str, str]:
    """Return the last names of layers that stay plain in models of this type -> why.

    Empty where transformers has no source of that name.
    """
    _, *classes = _CLASS.split(_source(model_type))
    owners = zip(classes[::2], classes[1::2], strict=True)
    return MappingProxyType(
        {layer: multiplied(owner) for owner, body in owners for layer in PRODUCT.findall(body)}
    )


def _source(model_type: str) -> str:
    model_type = model_type.replace("-", "_")
    spec = find_spec("transformers") if model_type.isidentifier() else None
    places = spec.submodule_search_locations if spec else None
    for place in places or ():
        file = Path(place, "models", model_type, f"modeling_{model_type}.py")
        with suppress(OSError):  # there is none, or its name is too long for a file
            return file.read_text(encoding="utf-8")
    return ""
