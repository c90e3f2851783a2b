"""Check 6 finds scales and codes that are missing or absurd, in the tensors themselves."""

from __future__ import annotations

import pytest
import torch

import toy_llama as toy
from examined import statuses, told

SCALE = f"{toy.DOWN}.weight_scale_inv"


def set_scale(value, where=(0, 1)):
    """Return an edit that sets one scale of down_proj."""

    def edit(tensors):
        tensors[SCALE][where] = value

    return edit


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.nan, "has 1 of 8 scales NaN, the first at [0, 1]"),
        (torch.inf, "has 1 of 8 scales infinite, the first at [0, 1]"),
        (-0.5, "has 1 of 8 scales negative, the first at [0, 1]"),
        (0.0, "weights that are not zero under a scale of 0"),
    ],
)
def test_one_bad_scale_is_found_and_named(examine, value, text):
    report = examine(set_scale(value), layers="mlp.down_proj")
    assert statuses(report)["scales"] == "fail"
    assert told(report, "scales").startswith(toy.DOWN) and text in told(report, "scales")
    assert report["scales"].findings[0].names == (toy.DOWN,)


def test_nan_is_traced_to_the_layer_where_it_starts(examine):
    report = examine(set_scale(torch.nan))
    assert f"NaN starts in {toy.DOWN} (LinearBase, kernel reference)." in told(report, "numbers")
    assert "its input is finite" in told(report, "numbers")


def test_a_missing_scale_is_found(examine):
    report = examine(lambda tensors: tensors.pop(SCALE))
    assert statuses(report)["scales"] == "fail"
    assert f"{toy.DOWN}: weight_scale_inv is missing (nor weight_scale, scale" in told(
        report, "scales"
    )
    assert statuses(report)["dispatch"] == "pass"
    assert report["numbers"].status == "skip"
    quick = examine(lambda tensors: tensors.pop(SCALE), quick=True)
    assert statuses(quick)["scales"] == "fail", "headers show it"


def test_a_missing_static_input_scale_is_found(examine):
    def edit(tensors):
        tensors |= toy.with_input_scales(tensors)
        del tensors[f"{toy.K}.input_scale"]

    report = examine(edit, toy.STATIC, tile="*x*", quick=True)
    assert f"{toy.K}: input_scale is missing" in told(report, "scales")


@pytest.mark.parametrize(
    ("value", "level", "text"),
    [
        (0.0, "fail", "has an input scale of 0"),
        (torch.nan, "fail", "has 1 of 1 input scales NaN"),
        (-1.0, "fail", "has 1 of 1 input scales negative"),
        (1.0, "warn", "has an input scale of 1.0, the default"),
        (1e9, "warn", "has an input scale of 1e+09, which no activation needs"),
    ],
)
def test_input_scales_are_looked_at(examine, value, level, text):
    def edit(tensors):
        tensors |= toy.with_input_scales(tensors)
        tensors[f"{toy.K}.input_scale"] = torch.tensor(value)

    report = examine(edit, toy.STATIC, tile="*x*", layers="k_proj")
    assert statuses(report)["scales"] == level
    assert f"{toy.K} {text}" in told(report, "scales")


def test_codes_that_are_nan_are_found(examine):
    def edit(tensors):
        tensors[f"{toy.Q}.weight"].view(torch.uint8)[3, 5:7] = 0x7F

    assert f"{toy.Q} has 2 codes that are NaN" in told(examine(edit), "scales")


def test_all_zero_weights_are_found(examine):
    def edit(tensors):
        tensors[f"{toy.Q}.weight"].view(torch.uint8).zero_()
        tensors[f"{toy.HEAD}.weight"].zero_()

    report = examine(edit)
    assert statuses(report)["scales"] == "warn"
    assert "are all zeros" in told(report, "scales")
    assert {n for f in report["scales"].findings for n in f.names} == {toy.Q, "lm_head.weight"}


def test_scales_that_were_never_set_are_found(examine):
    report = examine(lambda tensors: tensors[SCALE].fill_(1.0))
    assert f"{toy.DOWN} has all 8 scales of 1.0, the default" in told(report, "scales")


def test_scales_that_divide_are_found(examine):
    report = examine(lambda tensors: tensors[SCALE].reciprocal_())
    assert f"{toy.DOWN} has scales from " in told(report, "scales")
    assert "Check whether this tool stores scales that divide" in told(report, "scales")


def test_plain_tensors_with_nan_or_infinity_are_found(examine):
    def edit(tensors):
        tensors["model.norm.weight"][0] = torch.nan
        tensors[f"{toy.HEAD}.weight"][0, 0] = torch.inf

    report = examine(edit)
    assert "model.norm.weight holds NaN" in told(report, "scales")
    assert "lm_head.weight holds infinity" in told(report, "scales")


def test_scales_of_the_kv_cache_are_looked_at(examine):
    def edit(tensors):
        tensors[f"{toy.LAYER}.self_attn.k_proj.k_scale"] = torch.tensor(torch.nan)

    report = examine(edit)
    assert f"{toy.K}.k_scale has 1 of 1 attention scales NaN" in told(report, "scales")


def test_scales_that_are_promised_and_absent_are_found(examine):
    block = {**toy.BLOCK, "kv_cache_scheme": {"type": "float", "num_bits": 8}}
    report = examine(block=block, quick=True)
    assert statuses(report)["scales"] == "warn"
    assert f"{toy.LAYER}.self_attn: " in told(report, "scales")
    assert "stores no scales for them: 1.0 is used" in told(report, "scales")
    assert examine(block=block, quick=True, kv_cache="none")["scales"].status == "skip"


def test_every_tensor_is_read_once_and_shown(examine):
    seen = []

    def track(items):
        items = list(items)
        seen.append(len(items))
        return iter(items)

    report = examine(track=track)
    assert seen[0] == 7 + 5, "seven quantized layers, five plain tensors"
    assert report["scales"].summary == "7 quantized layers and 5 plain tensors read"


def test_faults_that_differ_in_numbers_only_are_one_from_the_fourth_on(examine):
    """A tool whose scales divide writes all of them so."""

    def edit(tensors):
        for name in [name for name in tensors if name.endswith("weight_scale_inv")]:
            tensors[name] = 1 / tensors[name]

    (finding,) = examine(edit)["scales"].findings
    assert finding.level == "warn" and len(finding.names) == len(toy.LINEARS)
    assert finding.what.startswith(f"{len(toy.LINEARS)} tensors (model.layers.0.")
    assert " have scales from " in finding.what and "Check whether" in finding.todo
    assert f"it is said of {finding.names[0]}, and of the others in other numbers" in finding.what
