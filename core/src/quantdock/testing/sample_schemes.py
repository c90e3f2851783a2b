"""Schemes of every kind, to try descriptors on."""

from __future__ import annotations

from itertools import product

from quantdock.formats import parse_spec
from quantdock.schemes import Scheme

_FP8 = ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz")
_WEIGHT_TILES = ("[*x*]", "[1x*]", "[128x128]", "[1x128]", "[1x32]:e8m0:ceil")
_ACTIVATION_TILES = ("[*x*]", "[*x*]:dynamic", "[1x*]:dynamic", "[1x128]:dynamic")

_WEIGHTS = (
    *(f"{element}{tile}" for element, tile in product((*_FP8, "int8"), _WEIGHT_TILES)),
    *("int4[1x32]", "int4[1x128]", "uint4[1x32]:zero", "uint4[1x128]:zero", "uint8[1x128]:zero"),
)


def _activations(weight: str) -> tuple[str, ...]:
    element = weight.partition("[")[0]
    if element not in (*_FP8, "int8"):
        return ()
    if "e8m0" in weight:
        return (f"{element}[1x32]:e8m0:ceil:dynamic",)
    return tuple(element + tile for tile in _ACTIVATION_TILES)


SAMPLES: tuple[Scheme, ...] = tuple(
    Scheme(weight=parse_spec(weight), activation=parse_spec(activation) if activation else None)
    for weight in _WEIGHTS
    for activation in (None, *_activations(weight))
)
