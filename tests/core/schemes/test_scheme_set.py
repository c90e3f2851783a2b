"""Sets of schemes: each field that is outside has its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quantdock.schemes import SchemeSet, SpecSet, parse_scheme

CHANNEL = parse_scheme("fp8_e4m3[1x*]").weight


@pytest.mark.parametrize(
    ("allowed", "reason"),
    [
        (SpecSet(), None),
        (SpecSet(elements=frozenset({"int8"})), "weight element is fp8_e4m3, it takes int8"),
        (
            SpecSet(granularities=frozenset({"tensor", "block"})),
            "weight tile is channel, it takes block, tensor",
        ),
        (SpecSet(scales=frozenset({"e8m0"})), "weight scale is f32, it takes e8m0"),
        (SpecSet(dynamic=True), "weight scale is static, it takes dynamic"),
        (SpecSet(dynamic=False), None),
        (SpecSet(zero=False), None),
        (SpecSet(zero=True), "weight has no zero point, it takes one"),
    ],
)
def test_each_field_of_a_set_has_its_reason(allowed: SpecSet, reason: str | None) -> None:
    expected = () if reason is None else (reason,)
    assert allowed.why_not(CHANNEL, "weight") == expected


def test_a_zero_point_is_refused_by_name() -> None:
    spec = parse_scheme("int8[1x*]:zero").weight
    assert SpecSet(zero=False).why_not(spec, "weight") == (
        "weight has a zero point, it takes none",
    )


def test_activations_must_be_quantized_or_not_as_the_set_says() -> None:
    both, plain = SchemeSet(weight=SpecSet(), activation=SpecSet()), SchemeSet(weight=SpecSet())
    w8a8, w8a16 = parse_scheme("int8[1x*] x int8[1x*]:dynamic"), parse_scheme("int8[1x*]")
    assert both.why_not(w8a8) == plain.why_not(w8a16) == ()
    assert both.why_not(w8a16) == ("it quantizes activations; this scheme leaves them as given",)
    assert plain.why_not(w8a8) == (
        "it leaves activations as given; this scheme has int8[1x*]:dynamic",
    )


def test_reasons_of_both_specs_are_listed() -> None:
    only_fp8 = SpecSet(elements=frozenset({"fp8_e4m3"}))
    taken = SchemeSet(weight=only_fp8, activation=only_fp8)
    assert taken.why_not(parse_scheme("int8[1x*] x int8[1x*]:dynamic")) == (
        "weight element is int8, it takes fp8_e4m3",
        "activation element is int8, it takes fp8_e4m3",
    )


def test_act_order_and_input_multipliers_are_taken_only_where_a_kernel_says_so():
    weight = SpecSet(elements=frozenset({"uint4"}))
    ordered = parse_scheme("uint4[1x128]:zero:act-order")
    multiplied = parse_scheme("uint4[1x128]:zero + input multiplier")
    assert parse_scheme(str(multiplied)) == multiplied
    assert SchemeSet(weight=weight).why_not(ordered) == (
        "weight has groups in any order, it takes a fixed one",
    )
    assert SchemeSet(weight=weight).why_not(multiplied) == (
        "inputs have a multiplier, it takes none",
    )
    knowing = SchemeSet(weight=replace(weight, act_order=None), input_multiplier=True)
    assert knowing.why_not(ordered) == knowing.why_not(multiplied) == ()


def test_groups_may_have_to_be_multiples():
    groups = SpecSet(cols_multiple=32)
    assert groups.why_not(parse_scheme("int4[1x64]").weight, "weight") == ()
    assert groups.why_not(parse_scheme("int4[1x*]").weight, "weight") == ()
    assert groups.why_not(parse_scheme("int4[1x48]").weight, "weight") == (
        "weight has groups of 48, no multiple of 32",
    )


def test_two_levels_of_scales_are_taken_only_where_a_kernel_says_so():
    scheme = parse_scheme("fp4_e2m1[1x16]:e4m3:second[*x*]")
    fp4 = SpecSet(elements=frozenset({"fp4_e2m1"}))
    assert SchemeSet(weight=fp4).why_not(scheme) == (
        "weight has two levels of scales, it takes one",
    )
    assert SchemeSet(weight=replace(fp4, second=None)).why_not(scheme) == ()
    needing = SchemeSet(weight=replace(fp4, second=True))
    assert needing.why_not(scheme) == ()
    assert needing.why_not(parse_scheme("fp4_e2m1[1x32]:e8m0:even")) == (
        "weight has one level of scales, it takes two",
    )


def test_a_second_scale_makes_dynamic_activations_static():
    weight = "fp4_e2m1[1x16]:e4m3:second[*x*]"
    assert parse_scheme(f"{weight} x fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]").is_static
    assert not parse_scheme(f"{weight} x fp8_e4m3[1x*]:dynamic").is_static
