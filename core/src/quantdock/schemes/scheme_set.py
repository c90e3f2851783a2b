"""Sets of schemes, written as the values that each field may have.

A kernel accepts a set, a substitution replaces one; what lies outside can say which field does.

>>> from quantdock.schemes.scheme import parse_scheme
>>> fp8 = SpecSet(elements=frozenset({"fp8_e4m3"}))
>>> SchemeSet(weight=fp8).why_not(parse_scheme("int8[1x*]"))
('weight element is int8, it takes fp8_e4m3',)
"""

from __future__ import annotations

from dataclasses import dataclass

from quantdock.fields import require_right, wrong_count, wrong_kind, wrong_words
from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.formats.spec import GRANULARITIES, SCALES
from quantdock.schemes.scheme import Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecSet:
    """A set of QuantSpecs, as the values each field may have; None means any.

    ``act_order`` and ``second`` (two levels of scales) are False unless said: a kernel that does
    not know of them would be wrong. ``cols_multiple``: a group of columns that is not all of them
    must be a multiple of it.
    """

    elements: frozenset[str] | None = None
    granularities: frozenset[str] | None = None
    scales: frozenset[str] | None = None
    dynamic: bool | None = None
    zero: bool | None = None
    act_order: bool | None = False
    second: bool | None = False
    cols_multiple: int = 1

    def __post_init__(self) -> None:
        sets = (
            ("elements", self.elements, tuple(ELEMENTS)),
            ("granularities", self.granularities, GRANULARITIES),
            ("scales", self.scales, SCALES),
        )
        wrong = wrong_count("cols_multiple", self.cols_multiple)
        for field, words, known in sets:
            wrong += wrong_words(field, words, known) if words is not None else []
        require_right(self, wrong)

    def why_not(self, spec: QuantSpec, role: str) -> tuple[str, ...]:
        """Return every reason ``spec`` is outside the set."""
        checks = (
            ("element", spec.element, self.elements),
            ("tile", spec.granularity, self.granularities),
            ("scale", spec.scale, self.scales),
        )
        reasons = [
            f"{role} {word} is {value}, it takes {', '.join(sorted(allowed))}"
            for word, value, allowed in checks
            if allowed is not None and value not in allowed
        ]
        if self.dynamic is not None and spec.dynamic is not self.dynamic:
            has, takes = ("dynamic", "static") if spec.dynamic else ("static", "dynamic")
            reasons.append(f"{role} scale is {has}, it takes {takes}")
        if self.zero is not None and spec.zero is not self.zero:
            has, takes = ("a", "none") if spec.zero else ("no", "one")
            reasons.append(f"{role} has {has} zero point, it takes {takes}")
        if self.act_order is not None and spec.act_order is not self.act_order:
            has, takes = ("any", "a fixed") if spec.act_order else ("a fixed", "any")
            reasons.append(f"{role} has groups in {has} order, it takes {takes} one")
        if self.second is not None and (spec.second is not None) is not self.second:
            has, takes = ("two levels", "one") if spec.second else ("one level", "two")
            reasons.append(f"{role} has {has} of scales, it takes {takes}")
        if spec.cols is not None and spec.cols % self.cols_multiple:
            reasons.append(f"{role} has groups of {spec.cols}, no multiple of {self.cols_multiple}")
        return tuple(reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeSet:
    """A set of schemes; ``activation`` None means that activations stay as given.

    ``input_multiplier`` True takes schemes with and without one, False only those without.
    """

    weight: SpecSet
    activation: SpecSet | None = None
    input_multiplier: bool = False

    def __post_init__(self) -> None:
        wrong = wrong_kind("weight", self.weight, SpecSet)
        wrong += wrong_kind("activation", self.activation or self.weight, SpecSet)
        require_right(self, wrong)

    def why_not(self, scheme: Scheme) -> tuple[str, ...]:
        """Return every reason ``scheme`` is outside the set."""
        reasons = self.weight.why_not(scheme.weight, "weight")
        if scheme.input_multiplier and not self.input_multiplier:
            reasons = (*reasons, "inputs have a multiplier, it takes none")
        if self.activation is None and scheme.activation is not None:
            return (
                *reasons,
                f"it leaves activations as given; this scheme has {scheme.activation}",
            )
        if self.activation is not None and scheme.activation is None:
            return (*reasons, "it quantizes activations; this scheme leaves them as given")
        if self.activation is not None and scheme.activation is not None:
            return (*reasons, *self.activation.why_not(scheme.activation, "activation"))
        return reasons
