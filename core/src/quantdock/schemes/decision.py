"""Decision: what a config says about one layer. Never None, always with a reason."""

from __future__ import annotations

from dataclasses import dataclass

from quantdock.schemes.scheme import Scheme

# The remedy where nothing more is known than what decided it.
CORRECT = (
    "Correct the checkpoint's quantization block where it is wrong about the file; else download "
    "the file again, or quantize the model again."
)
# The remedy where parts of one layer are treated differently: each can be decoded by itself.
ALIKE = (
    "Have all parts of the layer treated alike, or load with quantization='none', which decodes "
    "each by itself."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A scheme, or "unquantized because ...", or an error; ``source`` is where it is written.

    ``todo`` is the remedy for an error, by whoever found it out. ``promised``: a name that was
    asked for says the scheme, so a platform must not change it.
    """

    scheme: Scheme | None = None
    because: str
    source: str
    error: bool = False
    todo: str = ""
    promised: bool = False

    @classmethod
    def quantized(
        cls, scheme: Scheme, because: str, source: str, *, promised: bool = False
    ) -> Decision:
        """Return the decision to execute ``scheme``."""
        return cls(scheme=scheme, because=because, source=source, promised=promised)

    @classmethod
    def unquantized(cls, because: str, source: str) -> Decision:
        """Return the decision to leave the layer in the model's dtype."""
        return cls(because=because, source=source)

    @classmethod
    def refused(cls, because: str, source: str, todo: str = CORRECT) -> Decision:
        """Return the decision that this layer cannot be built as the checkpoint asks."""
        return cls(because=because, source=source, error=True, todo=todo)

    @property
    def kind(self) -> str:
        """Return quantized, unquantized or error."""
        return "error" if self.error else "quantized" if self.scheme else "unquantized"
