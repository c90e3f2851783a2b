"""A kernel whose numbers or whose way back are wrong is found, and the feature is named."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from quantdock import Kernel, Platform, SchemeSet, SpecSet
from quantdock.errors import FormatError
from quantdock.kernels.layout import to_sorted_grid
from quantdock.kernels.scaled_linear import ScaledLinear
from quantdock.schemes import parse_scheme
from quantdock.testing import make_plugin
from quantdock.testing.numeric_checks import check_kernel

CPU = Platform(name="cpu", arch="generic", device="cpu", dtypes=("float32",))


class WithoutZeros(ScaledLinear):
    def apply(self, tensors, x, bias):
        kept = {name: t for name, t in tensors.items() if name != "weight_zero"}
        return super().apply(kept, x, bias)


class WithoutOrder(ScaledLinear):
    def apply(self, tensors, x, bias):
        kept = {name: t for name, t in tensors.items() if name != "weight_order"}
        return super().apply(kept, x, bias)


class AlwaysSorts(ScaledLinear):
    def prepare(self, weight):
        return to_sorted_grid(weight, self.problem.scheme.weight).tensors()


class WithoutMultiplier(ScaledLinear):
    def apply(self, tensors, x, bias):
        kept = {name: t for name, t in tensors.items() if name != "input_multiplier"}
        return super().apply(kept, x, bias)


class WithoutInputZero(ScaledLinear):
    def apply(self, tensors, x, bias):
        return super().apply({**tensors, "input_zero": tensors["input_zero"] * 0}, x, bias)


class LosesZeros(ScaledLinear):
    def restore(self, tensors):
        weight = super().restore(tensors)
        segment = weight.segments[0]
        changed = replace(segment, zero=segment.zero + 1)
        return replace(weight, segments=(changed,))


class LosesTheMultiplier(ScaledLinear):
    def restore(self, tensors):
        return replace(super().restore(tensors), input_multiplier=None)


@pytest.fixture
def kernel_of(monkeypatch):
    def make(kind):
        plugin = make_plugin("acme_numbers", Kind=kind)
        monkeypatch.setitem(sys.modules, "acme_numbers", plugin)
        anything = SchemeSet(weight=SpecSet(act_order=None), input_multiplier=True)
        return Kernel(name="toy", target="acme_numbers:Kind", accepts=anything)

    return make


@pytest.mark.parametrize(
    "scheme",
    [
        "uint4[1x32]:zero:act-order + input multiplier",
        "int8[1x*] x int8[*x*]:zero",
        "int3[1x32] x int8[1x*]:zero:dynamic",
        "fp8_e4m3[128x128]",
    ],
)
def test_the_reference_passes(kernel_of, scheme):
    check_kernel(kernel_of(ScaledLinear), parse_scheme(scheme), CPU)


@pytest.mark.parametrize(
    ("kind", "scheme", "message"),
    [
        (WithoutZeros, "uint4[1x32]:zero", "toy is off by"),
        (WithoutOrder, "int4[1x32]:act-order", "toy is off by"),
        (WithoutMultiplier, "int4[1x32] + input multiplier", "toy is off by"),
        (WithoutInputZero, "int8[1x*] x int8[*x*]:zero", "toy is off by"),
        (LosesZeros, "uint4[1x32]:zero", "toy does not restore the zero of uint4"),
        (LosesTheMultiplier, "int4[1x*] + input multiplier", "restore the input_multiplier"),
    ],
)
def test_what_a_kernel_forgets_is_found(kernel_of, kind, scheme, message):
    with pytest.raises(AssertionError, match=message):
        check_kernel(kernel_of(kind), parse_scheme(scheme), CPU)


def test_a_kernel_that_sorts_columns_must_say_so(kernel_of):
    scheme = parse_scheme("uint4[1x32]:zero:act-order")
    check_kernel(kernel_of(ScaledLinear), scheme, CPU, equal_groups=False)
    check_kernel(kernel_of(AlwaysSorts), scheme, CPU)
    with pytest.raises(FormatError, match="groups of unequal size"):
        check_kernel(kernel_of(AlwaysSorts), scheme, CPU, equal_groups=False)
