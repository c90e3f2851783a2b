"""Fields: one JSON block, read field by field, with every spelling that tools have used.

>>> fields = Fields({"fmt": "E4M3", "ignored_layers": None, "backend": "x"}, "fp8")
>>> fields.choice("fmt", {"e4m3": 8}, default=None), fields.names("ignored_layers")
(8, ())
>>> fields.rest()
{'backend': 'x'}
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from quantdock.configs.matcher import Entry, entries
from quantdock.errors import ConfigError

T = TypeVar("T")
_CORRECT = "Correct the field in the checkpoint's quantization block."
_log = logging.getLogger(__name__)


class Fields:
    """Reads the fields of a quantization block; null counts as absent, and no object is an error.

    A known field with an impossible value is a ConfigError that names the field, the value and
    what is allowed. Fields that nobody asks for are kept; see ``rest``.
    """

    def __init__(self, block: Any, method: str) -> None:
        if not isinstance(block, Mapping):
            raise ConfigError(
                f"{method} is {block!r:.40}, which is no object.",
                why=['its settings stand in an object, as in {"name": value}'],
                todo=_CORRECT,
                value=block,
            )
        self._block: Mapping[str, Any] = block
        self._method = method
        self._known = {"quant_method"}

    def get(self, name: str) -> Any:
        """Return the value of a field as it stands; None where it is absent or null."""
        self._known.add(name)
        return self._block.get(name)

    def choice(self, name: str, allowed: Mapping[str, T], default: T) -> T:
        """Return what the word in a field stands for; case does not matter."""
        word = self.get(name)
        if word is None:
            return default
        if isinstance(word, str) and word.strip().lower() in allowed:
            return allowed[word.strip().lower()]
        self.refuse(name, ", ".join(map(repr, allowed)))

    def names(self, *spellings: str) -> tuple[Entry[None], ...]:
        """Return the entries of a list of names; the lists of all its spellings count."""
        found: tuple[Entry[None], ...] = ()
        for name in spellings:
            texts = self.get(name)
            if texts is None:
                continue
            if not _is_list(texts) or not all(isinstance(text, str) for text in texts):
                self.refuse(name, "a list of names, or null")
            found += entries(name, texts)
        return found

    def flag(self, name: str) -> bool | None:
        """Return true or false; None where the field is absent."""
        value = self.get(name)
        if value is None or isinstance(value, bool):
            return value
        self.refuse(name, "true or false, or null")

    def bits(self, *spellings: str, allowed: Sequence[int]) -> int:
        """Return a number of bits out of ``allowed``, under the first spelling that is there."""
        name = self._spelled(spellings)
        value = self.get(name)
        if isinstance(value, bool) or value not in allowed:
            self.refuse(name, ", ".join(map(str, allowed)), _quoted(value))
        return int(value)

    def group_size(self, *spellings: str) -> int | None:
        """Return how many input columns share a scale; None for -1, which means all of them.

        The first spelling that the block has counts; one of them must be there.
        """
        name = self._spelled(spellings)
        value = self.get(name)
        if value == -1 and not isinstance(value, bool):
            return None
        if not _is_count(value):
            allowed = "a number of input columns, or -1 for all of them"
            self.refuse(name, allowed, _quoted(value))
        return int(value)

    def tile(self, name: str) -> tuple[int, int] | None:
        """Return the rows and columns of a block; None where there is none."""
        value = self.get(name)
        if value is None:
            return None
        if not _is_list(value) or len(value) != 2 or not all(_is_count(v) for v in value):
            self.refuse(name, "two positive integers (rows, columns), or null")
        return value[0], value[1]

    def positive(self, name: str) -> float | None:
        """Return a number above zero; None where the field is absent."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            self.refuse(name, "a number above zero, or null", _quoted(value))
        return float(value)

    def _spelled(self, spellings: Sequence[str]) -> str:
        """Return the first of ``spellings`` that the block has, else the usual one."""
        present = [name for name in spellings if self.get(name) is not None]
        return present[0] if present else spellings[0]

    def refuse(self, name: str, allowed: str, because: str = "") -> NoReturn:
        """Raise the error for field ``name``; ``because`` says what its value contradicts.

        Raises:
            ConfigError: always.
        """
        value = self._block.get(name)
        raise ConfigError(
            f"{self._method}: {name} is {value!r}.",
            why=[*([because] if because else []), f"allowed: {allowed}"],
            todo=_CORRECT,
            field=name,
            value=value,
        )

    def rest(self) -> dict[str, Any]:
        """Return the fields nobody has read, and leave one line about them in the debug log."""
        left = {key: value for key, value in self._block.items() if key not in self._known}
        if left:
            _log.debug("%s: fields kept and not used: %s", self._method, ", ".join(left))
        return left


def _quoted(value: object) -> str:
    """Return what is wrong with a number that is written in quotes."""
    return "it is a string, and a number is expected" if isinstance(value, str) else ""


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
