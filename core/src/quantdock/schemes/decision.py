"""Decision: what a config says about one layer. Never None, always with a reason."""

from __future__ import annotations

from dataclasses import dataclass

from quantdock.schemes.scheme import Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A scheme, or "unquantized because ...", or an error; ``source`` is where it is written.

    ``todo`` is the remedy for an error; empty where decoding all weights (``none``) is one.
    """

    scheme: Scheme | None = None
    because: str
    source: str
    error: bool = False
    todo: str = ""

    @classmethod
    def quantized(cls, scheme: Scheme, because: str, source: str) -> Decision:
        """Return the decision to execute ``scheme``."""
        return cls(scheme=scheme, because=because, source=source)

    @classmethod
    def unquantized(cls, because: str, source: str) -> Decision:
        """Return the decision to leave the layer in the model's dtype."""
        return cls(because=because, source=source)

    @classmethod
    def refused(cls, because: str, source: str, todo: str = "") -> Decision:
        """Return the decision that this layer cannot be built as the checkpoint asks."""
        return cls(because=because, source=source, error=True, todo=todo)

    @property
    def kind(self) -> str:
        """Return quantized, unquantized or error."""
        return "error" if self.error else "quantized" if self.scheme else "unquantized"
