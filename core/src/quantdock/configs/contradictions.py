"""Where a file's tensors decide against its JSON: one note for all layers of one pattern."""

from __future__ import annotations

import logging
import re

_log = logging.getLogger(__name__)
# Where a layer's name counts: repeated layers share one note.
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


class Contradictions:
    """Notes of one config; ``num_found`` counts every layer, ``notes`` has each pattern once.

    ``is_told``: they go to the log too.
    """

    def __init__(self, method: str) -> None:
        self.is_told = True
        self._method = method
        self._notes: dict[tuple[str, str], str] = {}
        self.num_found = 0

    def add(self, prefix: str, what: str) -> None:
        """Note that the layer ``prefix`` is ``what``, which the JSON does not say."""
        self.num_found += 1
        pattern = _NUMBER.sub("*", prefix)
        if (pattern, what) not in self._notes:
            note = f"{pattern} is {what}; the stored tensors decide"
            self._notes[pattern, what] = note
            if self.is_told:
                _log.warning("%s: %s", self._method, note)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes in the order in which they were found."""
        return tuple(self._notes.values())
