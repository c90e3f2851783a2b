"""none: every layer stays in the model's dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

from quantdock.config import QuantizationConfig
from quantdock.errors import ConfigError
from quantdock.methods.slot import Slot
from quantdock.schemes import Decision, LayerFacts, Scheme

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.numerics.canonical import CanonicalWeight


class UnquantizedConfig(QuantizationConfig):
    """What ``quantization='none'`` means."""

    name = "none"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the config; a block of another method is not read."""
        return cls()

    @classmethod
    def online(cls, ignore: Sequence[str] = (), choices: Mapping[str, str] | None = None) -> Self:
        """Return the config.

        Raises:
            ConfigError: a choice asks for quantization all the same.
        """
        asked = {pattern: word for pattern, word in (choices or {}).items() if word != cls.name}
        if asked:
            raise ConfigError(
                "quantization='none' leaves every layer as it is.",
                why=[f"choices ask for {asked}"],
                todo="Name an online method such as 'fp8', and 'none' for the layers to leave out.",
                field="choices",
            )
        config = cls()
        config.is_online = True
        return config

    def scheme_for(self, facts: LayerFacts) -> Decision:
        """Return that the layer is unquantized."""
        return Decision.unquantized("no quantization is asked for", "quantization = 'none'")

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Refuse: no layer of this config has a scheme."""
        _refuse(scheme, facts)

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Refuse: no layer of this config has a scheme."""
        _refuse(scheme, facts)


def _refuse(scheme: Scheme, facts: LayerFacts) -> NoReturn:
    raise ConfigError(
        f"quantization='none' cannot read {facts.prefix} as {scheme}.",
        todo="Use the config of the checkpoint's own method to decode it.",
    )
