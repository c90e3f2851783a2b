"""Giving freed memory back to the system while a model loads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

_STEP_BYTES = 4 << 20


class MemoryKeeper:
    """Returns freed heap pages to the system after every 4 MiB that were read.

    Sources and temporaries are freed between tensors that stay. The C library keeps such holes for
    later, so that loading would end with several times the memory the model needs.
    """

    def __init__(self) -> None:
        self._since = 0

    def note(self, num_bytes: int) -> None:
        """Count ``num_bytes`` that were read and will be freed."""
        self._since += num_bytes
        if self._since >= _STEP_BYTES:
            self.give_back()

    def give_back(self) -> None:
        """Return freed pages now; without effect where the C library has no such call."""
        self._since = 0
        trim = _trim()
        if trim is not None:
            trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    """Return glibc's ``malloc_trim``, or None."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
