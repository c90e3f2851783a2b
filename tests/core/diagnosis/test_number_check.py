"""Check 8 finds kernels that lie, codes that are damaged, and where numbers end."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

import toy_llama as toy
from examined import noted, statuses, told
from quantdock import Kernel, SchemeSet, SpecSet
from quantdock.kernels.scaled_linear import ScaledLinear
from quantdock.testing.plugins import make_plugin, use_plugins

ANY = (SchemeSet(weight=SpecSet(), activation=SpecSet()), SchemeSet(weight=SpecSet()))


class Liar(ScaledLinear):
    """Computes one and a half times what it should."""

    def apply(self, tensors, x, bias):
        return super().apply(tensors, x, bias) * 1.5


class Stumbler(ScaledLinear):
    """Fails when it runs, as a library without the op it needs does."""

    def apply(self, tensors, x, bias):
        raise AttributeError("'_OpNamespace' object has no attribute 'acme_mm'")


@pytest.fixture
def use_kernel(monkeypatch) -> Iterator[object]:
    """Return a function that puts one kernel class in use."""

    def make(name, runner):
        kernel = Kernel(name=name, target=f"acme_{name}:Runner", accepts=ANY, tolerance=2.0**-8)
        plugin = make_plugin(f"acme_{name}", get_kernels=lambda platform: (kernel,), Runner=runner)
        monkeypatch.setitem(sys.modules, f"acme_{name}", plugin)
        return use_plugins(plugin)

    return make


@pytest.fixture
def base(tmp_path):
    """Return the 16-bit toy that the quantized one is made from."""
    return toy.write(tmp_path / "base", toy.llama(), None)


def test_a_kernel_that_lies_is_found(examine, use_kernel):
    with use_kernel("liar", Liar):
        report = examine()
    assert statuses(report)["kernels"] == "pass"
    assert statuses(report)["numbers"] == "fail"
    text = told(report, "numbers")
    assert f"{toy.Q} is the first layer whose kernel liar is wrong: off by 5.0e-01" in text
    assert "where 3.9e-03 is promised" in text
    assert "wrong are 7 of 7: 7 layers (" in text
    assert "QUANTDOCK_KERNEL=reference" in text


def test_a_kernel_that_fails_is_found_with_its_layer(examine, use_kernel):
    with use_kernel("stumbler", Stumbler):
        report = examine()
    text = told(report, "numbers")
    assert f"{toy.Q} raised an error while it ran." in text
    assert "AttributeError: '_OpNamespace' object has no attribute 'acme_mm'" in text


def test_flipped_codes_are_found_beside_the_base(examine, base):
    def flip(tensors):
        tensors[f"{toy.UP}.weight"].view(torch.uint8)[17, :64] ^= 0x80  # signs

    report = examine(flip, base=base)
    assert statuses(report)["scales"] == "pass", "no value is absurd"
    assert statuses(report)["numbers"] == "fail"
    text = told(report, "numbers")
    assert f"{toy.UP} is the first layer that is not its 16-bit weight" in text
    assert "weights of row 17 by" in text
    assert report["numbers"].findings[0].names == (toy.UP,)
    healthy = examine(base=base)
    assert statuses(healthy)["numbers"] == "pass"
    assert "from 16 bits" in healthy["numbers"].summary


def test_one_flipped_bit_is_found_beside_the_base(examine, base):
    def flip(tensors):
        codes = tensors[f"{toy.UP}.weight"].view(torch.uint8)
        column = int((codes[5] & 0x40 == 0).nonzero()[0])
        codes[5, column] |= 0x40  # the top bit of the exponent

    report = examine(flip, base=base, layers="up_proj")
    assert "weights of row 5 by" in told(report, "numbers")
    assert len(report["numbers"].details["layers"]) == 1


def test_a_scale_three_times_too_large_is_found_beside_the_base(examine, base):
    def triple(tensors):
        tensors[f"{toy.V}.weight_scale_inv"] *= 3

    report = examine(triple, base=base)
    assert f"{toy.V} is the first layer that is not its 16-bit weight" in told(report, "numbers")
    assert "results differ by 199.7%" in told(report, "numbers")


def test_a_base_that_is_another_model_is_a_warning(examine, tmp_path):
    other = {name: tensor.roll(1, 0) for name, tensor in toy.llama().items()}
    report = examine(base=toy.write(tmp_path / "other", other, None))
    assert statuses(report)["numbers"] == "warn"
    assert "most layers differ" in told(report, "numbers")
    small = toy.write(tmp_path / "small", toy.llama(intermediate=256), None)
    report = examine(base=small)
    assert "3 layers (model.layers.0.mlp.gate_proj" in told(report, "numbers")
    assert "the base has no 16-bit weight of this size" in told(report, "numbers")


def test_factors_that_a_quantizer_moved_are_no_fault_of_the_weights(examine, base):
    norm = f"{toy.LAYER}.input_layernorm.weight"

    def smooth(tensors):
        """Divide what comes in by 4 and multiply the weights by as much."""
        tensors[norm] = tensors[norm] / 4
        for name in (toy.Q, toy.K, toy.V):
            tensors[f"{name}.weight_scale_inv"] *= 4

    report = examine(smooth, base=base)
    assert statuses(report)["numbers"] == "warn"
    text = told(report, "numbers")
    assert f"the base also differs in {norm}" in text
    assert "or the quantizer moved factors between layers" in text


def test_a_base_that_is_quantized_is_refused(examine, tmp_path):
    quantized = toy.write(tmp_path / "quantized", toy.llama("*x*"), toy.TENSOR)
    assert "is quantized itself" in told(examine(base=quantized), "numbers")


def test_the_place_where_numbers_end_is_found(examine):
    def poison(tensors):
        tensors[f"{toy.LAYER}.post_attention_layernorm.weight"][3] = torch.inf

    report = examine(poison)
    assert statuses(report)["numbers"] == "fail"
    text = told(report, "numbers")
    assert f"starts in {toy.LAYER}.post_attention_layernorm (LlamaRMSNorm)" in text


def test_float16_that_overflows_is_found(examine):
    def enlarge(tensors):
        tensors[f"{toy.UP}.weight_scale_inv"] *= 1e6
        tensors[f"{toy.GATE}.weight_scale_inv"] *= 1e3

    report = examine(enlarge, dtype="float16")
    text = told(report, "numbers")
    assert f"infinity starts in {toy.UP} (LinearBase, kernel reference)" in text
    assert "or run in bfloat16 or float32 (--dtype)" in text


def test_without_a_tokenizer_text_is_not_judged(examine):
    report = examine()
    assert statuses(report)["numbers"] == "pass"
    assert "there is no tokenizer" in noted(report, "numbers")
    assert report["numbers"].details["perplexity"] is None


def test_tensors_that_no_module_reads_are_noted(examine):
    def surplus(tensors):
        tensors["model.layers.1.input_layernorm.weight"] = torch.ones(256)

    report = examine(surplus)
    text = noted(report, "numbers")
    assert "1 tensor of the files is read by no module" in text
    assert "model.layers.1.input_layernorm.weight" in text
    assert "read by no module" not in noted(examine(), "numbers")
