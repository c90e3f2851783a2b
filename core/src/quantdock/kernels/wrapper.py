"""A kernel in front of another: what it does not do itself, the other does.

>>> class Loud(KernelWrapper):
...     def apply(self, word):
...         return self.wrapped.apply(word).upper()
>>> class Quiet:
...     bits = 4
...     def apply(self, word):
...         return word
>>> Loud(Quiet()).apply("product"), Loud(Quiet()).bits
('PRODUCT', 4)
"""

from __future__ import annotations

from typing import Any


class KernelWrapper:
    """Has every attribute of the kernel that it wraps, besides its own."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "wrapped":  # copying asks before there is a kernel
            raise AttributeError(name)
        return getattr(self.wrapped, name)
