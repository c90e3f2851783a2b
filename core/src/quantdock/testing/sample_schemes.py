"""Schemes of every kind, to try descriptors on."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from quantdock.formats import parse_spec
from quantdock.schemes import Scheme, parse_scheme

_FP8 = ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz")
_WEIGHT_TILES = ("[*x*]", "[1x*]", "[128x128]", "[1x128]", "[1x32]:e8m0:ceil")
_ACTIVATION_TILES = ("[*x*]", "[*x*]:dynamic", "[1x*]:dynamic", "[1x128]:dynamic")

# Integers of 1 byte or less, with what their dialects store besides.
_INTEGERS = (
    *(f"int{bits}[1x32]" for bits in range(2, 8)),
    *(f"uint{bits}[1x32]:zero" for bits in range(1, 8)),
    *("int4[1x*]", "int4[1x128]", "uint4[1x128]:zero", "uint8[1x128]:zero"),
    *("int4[1x32]:act-order", "uint4[1x32]:zero:act-order", "int8[1x128]:act-order"),
)
_WEIGHTS = (
    *(f"{element}{tile}" for element, tile in product((*_FP8, "int8"), _WEIGHT_TILES)),
    *_INTEGERS,
)
_ASYMMETRIC = ("int8[*x*]:zero", "int8[1x*]:zero:dynamic")
_FOR_4_BITS = ("int8[1x*]:dynamic", "int8[1x*]:zero:dynamic", "fp8_e4m3[1x*]:dynamic")
# Floats of less than a byte: scales are powers of two, as OCP has them.
_SMALL_FLOATS = (
    *(f"{element}[1x32]:e8m0:even" for element in ("fp4_e2m1", "fp6_e2m3", "fp6_e3m2")),
    *(
        f"fp4_e2m1[1x32]:e8m0:even x {activation}:dynamic"
        for activation in ("fp4_e2m1[1x32]:e8m0:even", "fp8_e4m3[1x32]:e8m0:ceil")
    ),
)
_WITH_MULTIPLIER = ("int4[1x128]", "int8[1x*]", "int8[1x*] x int8[*x*]")


def _activations(weight: str) -> tuple[str, ...]:
    element = weight.partition("[")[0]
    if element in ("int4", "uint4"):
        return _FOR_4_BITS
    if element not in (*_FP8, "int8"):
        return ()
    if "e8m0" in weight:
        return (f"{element}[1x32]:e8m0:ceil:dynamic",)
    tiles = tuple(element + tile for tile in _ACTIVATION_TILES)
    return (*tiles, *_ASYMMETRIC) if weight == "int8[1x*]" else tiles


SAMPLES: tuple[Scheme, ...] = (
    *(
        Scheme(weight=parse_spec(weight), activation=parse_spec(activation) if activation else None)
        for weight in _WEIGHTS
        for activation in (None, *_activations(weight))
    ),
    *(parse_scheme(text) for text in _SMALL_FLOATS),
    *(replace(parse_scheme(text), input_multiplier=True) for text in _WITH_MULTIPLIER),
)
