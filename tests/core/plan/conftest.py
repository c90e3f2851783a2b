"""A config and a device that need no registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from quantdock.config import QuantizationConfig
from quantdock.dispatch import Dispatch
from quantdock.kernel import Kernel, Substitution
from quantdock.methods.slot import Slot
from quantdock.platform import Platform
from quantdock.schemes import Decision, LayerFacts, Scheme, SchemeSet, SpecSet, parse_scheme

W8A8 = parse_scheme("fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic")
ANY_WEIGHT = SchemeSet(weight=SpecSet())
ANY = (ANY_WEIGHT, SchemeSet(weight=SpecSet(), activation=SpecSet()))
DEVICE = Platform(name="toy", arch="t1", device="toy", features=frozenset({"mma"}))
FAST = Kernel(
    name="fast", target="toy:Fast", accepts=ANY_WEIGHT, requires=frozenset({"mma"}), k_multiple=16
)
REFERENCE = Kernel(
    name="reference", target="toy:Ref", accepts=ANY, is_reference=True, note="plain torch"
)
WEIGHT_ONLY = Substitution(
    name="weight_only",
    source=SchemeSet(weight=SpecSet(), activation=SpecSet()),
    change="weight_only",
    lacks=frozenset({"fp8_mma"}),
    why="no fp8 cores",
    accuracy="as good",
)


class ToyConfig(QuantizationConfig):
    """Quantizes every linear layer and expert whose name has no "keep" in it."""

    name = "toy"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ToyConfig:
        return cls()

    def scheme_for(self, facts: LayerFacts) -> Decision:
        if "keep" in facts.prefix or facts.kind in ("embedding", "head", "attention"):
            return Decision.unquantized("kept", "the list")
        if "bad" in facts.prefix:
            return Decision.refused("it is bad", "the headers")
        return Decision.quantized(W8A8, "all are", "the block")

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        scale = Slot(
            name="weight_scale", shapes=((n, 1), (n,)), dtypes=("float32",), aliases=("scale",)
        )
        return (Slot(name="weight", shapes=((n, k),), dtypes=("float8_e4m3fn",)), scale)

    def decode(self, scheme: Scheme, stored: Any, facts: LayerFacts) -> Any:
        raise AssertionError("a plan decodes nothing")


@pytest.fixture
def config() -> ToyConfig:
    return ToyConfig()


@pytest.fixture
def make_dispatch() -> Callable[..., Dispatch]:
    """Return a function that makes the toy device's dispatch, with changes."""

    def make(**changes: Any) -> Dispatch:
        usual = {"kernels": (FAST, REFERENCE), "substitutions": (WEIGHT_ONLY,)}
        return Dispatch(**{"platform": DEVICE, **usual, **changes})

    return make
