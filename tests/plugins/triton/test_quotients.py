"""Why a reciprocal in two parts gives the codes of true quotients, for values of 16 bits.

A code depends on how v / s, rounded to f32, compares with a midpoint m of two codes, so on which
side v / s is of T, halfway from m to the next f32. With whole numbers V, T, S for the significands,
``V * 2**k - T * S`` is then near 0. All that are near are listed here.
"""

from __future__ import annotations

import pytest

UNIT = 2**-49  # T * S is below 2^49
NEAR = 128  # units of T * S that the reciprocal, a little too large, may be off: 2^-42
SIGNIFICANDS = {"e5m2": 3, "e4m3": 4, "int8": 8}


def thresholds(bits):
    """Yield T, 25 bits, on both sides of each midpoint of codes with so many significant bits."""
    for midpoint in range(1, 1 << (bits + 1), 2):
        wide = midpoint << (25 - midpoint.bit_length())
        yield wide + 1
        yield (wide << 1) - 1 if midpoint == 1 else wide - 1  # f32 is finer below a power of two


def near_pairs(threshold, value_bits):
    """Yield S and ``V * 2**k - T * S`` for each V of so many bits and each S of 24, if near 0."""
    for product_bits in (48, 49):
        power = product_bits - value_bits
        inverse = pow(threshold, -1, 1 << power)
        for distance in range(-NEAR, NEAR + 1):
            scale = -distance * inverse % (1 << power)
            product = threshold * scale + distance
            if distance and scale.bit_length() == 24 and product.bit_length() == product_bits:
                yield scale, distance


@pytest.mark.parametrize("value_bits", [8, 11], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("element", SIGNIFICANDS)
def test_no_quotient_is_near_a_threshold_but_one_above(element, value_bits):
    found = [
        (threshold, *pair)
        for threshold in thresholds(SIGNIFICANDS[element])
        for pair in near_pairs(threshold, value_bits)
    ]
    assert found == [((1 << 24) + 1, (1 << 24) - 1, 1)]


def test_the_reciprocal_is_a_little_too_large():
    """As encode_kernel.py computes it, whatever the last bit of the device's first estimate."""
    np = pytest.importorskip("numpy")
    one, below, above = np.float32(1), np.float32(1 - 2.0**-22), np.float32(1 + 2.0**-21)
    scale = np.random.default_rng(0).uniform(1, 2, 1 << 18).astype(np.float32)
    scale[:3] = 1, 2 - 2.0**-23, 1 + 2.0**-23
    for step in (-1, 0, 1):
        about = ((one / scale).view(np.int32) + step).view(np.float32)
        high = about * below
        remainder = 1 - scale.astype(np.float64) * high.astype(np.float64)  # exact
        low = remainder.astype(np.float32) * (about * above)
        excess = (high.astype(np.float64) * scale - 1) + low.astype(np.float64) * scale
        rounding = 2.0**-46  # of the value's product with the second part
        assert excess.min() > rounding and excess.max() + rounding < NEAR * UNIT and low.min() > 0
