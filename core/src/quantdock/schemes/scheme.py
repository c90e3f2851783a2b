"""Scheme: the pair of weight and activation encodings that a kernel executes.

>>> scheme = parse_scheme("fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic")
>>> scheme.name, str(scheme.weight_only())
('w8a8', 'fp8_e4m3[128x128]')
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from quantdock.formats import ELEMENTS, QuantSpec, parse_spec

_MULTIPLIER = " + input multiplier"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """What a layer computes with: its weight's encoding and its activation's (None: as given).

    ``input_multiplier`` says that each input feature is multiplied by a stored number first, as
    AWQ's and SmoothQuant's equalisation ask where it is not folded into the layer before.
    """

    weight: QuantSpec
    activation: QuantSpec | None = None
    input_multiplier: bool = False

    @property
    def name(self) -> str:
        """Return the field's short word, such as w8a8 or w8a16."""
        bits = ELEMENTS[self.activation.element].bits if self.activation else 16
        return f"w{ELEMENTS[self.weight.element].bits}a{bits}"

    @property
    def is_static(self) -> bool:
        """Return whether activations have a scale of their own in the checkpoint."""
        return self.activation is not None and self.activation.is_static

    def weight_only(self) -> Scheme:
        """Return the scheme with the same weight and activations left as given."""
        return replace(self, activation=None)

    def with_int8_tokens(self) -> Scheme:
        """Return the scheme with the same weight and each token rounded to int8 as it comes."""
        return replace(self, activation=QuantSpec(element="int8", rows=1, dynamic=True))

    def __str__(self) -> str:
        activation = f" x {self.activation}" if self.activation else ""
        return f"{self.weight}{activation}{_MULTIPLIER if self.input_multiplier else ''}"


@lru_cache(maxsize=1024)
def parse_scheme(text: str) -> Scheme:
    """Return the scheme that ``str(scheme)`` wrote; raises FormatError for another form."""
    weight, _, activation = text.removesuffix(_MULTIPLIER).partition(" x ")
    return Scheme(
        weight=parse_spec(weight),
        activation=parse_spec(activation) if activation else None,
        input_multiplier=text.endswith(_MULTIPLIER),
    )
