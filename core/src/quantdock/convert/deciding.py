"""Deciding: which layers of a 16-bit checkpoint are quantized, and to what, by what was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quantdock.configs.matcher import Entry, Matcher, entries
from quantdock.configs.online import NONE, OnlineConfig
from quantdock.configs.resolution import Resolution
from quantdock.configs.stored import StoredWeight
from quantdock.schemes import LayerFacts, Scheme


class Deciding(OnlineConfig):
    """Leaves alone what online methods do; each word stands for one scheme on every machine."""

    name = "convert"

    def __init__(
        self,
        usual: str,
        schemes: Mapping[str, Scheme],
        ignore: Sequence[str],
        choices: Mapping[str, str],
        *,
        takes_experts: bool = False,
    ) -> None:
        """Keep what was asked.

        Args:
            usual: the word for layers that nothing else names.
            schemes: word -> scheme, for the usual and all in ``choices`` but "none".
            takes_experts: the usual one is for experts, too; else choices name them.
        """
        super().__init__()
        self._usual, self._schemes = usual, schemes
        self._takes_experts = takes_experts
        self._kept = Matcher(entries("ignore", ignore))
        self._chosen = Matcher(
            Entry(text=pattern, source=f"choices[{pattern!r}] = {word!r}", value=word)
            for pattern, word in choices.items()
        )

    def takes(self, facts: LayerFacts) -> bool:
        """Return whether experts are quantized: all are, or a choice has a scheme for these."""
        chosen = self._chosen.find(facts, self.packed_modules_mapping)
        return self._takes_experts or (chosen is not None and chosen.value not in (None, NONE))

    def _resolve(self, word: str, kind: str, weights: Sequence[StoredWeight]) -> Resolution:
        """Return what ``word`` stands for, this config's own name for the usual."""
        meant = self._usual if word == self.name else word
        scheme = self._schemes[meant]
        return Resolution(scheme=scheme, because=f"{meant} is {scheme}")
