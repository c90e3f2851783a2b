"""Checkpoints of GPTQModel and AutoAWQ, whole: weights bit for bit, logits, kernels, saving."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import log_softmax

import quantdock
from model_outputs import logits
from quantdock.cli.app import run as run_cli
from tests.toy_files import edit_tensors

torch.set_num_threads(1)

# In which dtype the tool multiplies codes by scales, both rounded to it.
DENSE = {
    "gptq-w4-g32-asym-v2": torch.bfloat16,
    "gptq-w4-g64-asym-v1": torch.bfloat16,
    "gptq-w4-g64-desc": torch.bfloat16,
    "gptq-w8-g128": torch.bfloat16,
    "awq-w4-g32": torch.float16,
    "awq-autoawq-g128-clip": torch.float16,
}
EXPERTS = {"gptq-mixtral-w4-g32": torch.bfloat16, "gptq-qwen3moe-w4-g32": torch.bfloat16}
EXACT = ("autoround-gptq-w4-g32", "autoround-awq-w4-g32")
SCHEMES = {
    "gptq-w4-g32-asym-v2": "uint4[1x32]:zero",
    "gptq-w4-g64-asym-v1": "uint4[1x64]:zero:act-order",
    "gptq-w4-g64-desc": "int4[1x64]:act-order",
    "gptq-w8-g128": "int8[1x128]",
    "awq-w4-g32": "uint4[1x32]:zero",
    "awq-autoawq-g128-clip": "uint4[1x128]:zero",
}
PROMPT = "Once upon a time"


def golden(folder):
    return load_file(folder / "golden.safetensors")


def as_the_tool_rounds(folder, copy, dtype):
    """Return the decoded model whose scales and weights were rounded to ``dtype``."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("golden*"))

    def round_scales(tensors):
        for name in [name for name in tensors if name.endswith(".scales")]:
            tensors[name] = tensors[name].to(dtype)

    edit_tensors(copy, round_scales)
    model = quantdock.load(copy, "none", device="cpu", dtype="float32")
    for name, parameter in model.named_parameters():
        if "_proj" in name:
            parameter.data = parameter.data.to(dtype).float()
    return model


@pytest.mark.parametrize("name", [*DENSE, *EXPERTS])
def test_rounded_as_the_tool_does_weights_are_equal_and_logits_too(shared, tmp_path, name):
    folder = shared / "models" / name
    expected = golden(folder)
    model = as_the_tool_rounds(folder, tmp_path / "m", {**DENSE, **EXPERTS}[name])
    compared = 0
    for key, value in expected.items():
        layer = key.removeprefix("dequant.").removesuffix(".weight")
        if key.startswith("dequant.") and ".experts." not in layer:
            assert torch.equal(model.get_submodule(layer).weight, value)
            compared += 1
    assert compared == (1 if name in EXPERTS else 2)
    ours = logits(model, expected["input_ids"])
    assert (ours - expected["logits_dequant"]).abs().max() < 2e-3


@pytest.mark.parametrize("name", [*DENSE, *EXPERTS, *EXACT])
def test_running_is_decoding(shared, name):
    """Scales multiply in f32: nearer to what the file says than the tool's own rounding."""
    folder = shared / "models" / name
    ids = golden(folder)["input_ids"]
    plain = quantdock.load(folder, "none", device="cpu", dtype="float32")
    running = quantdock.load(folder, device="cpu", dtype="float32")
    assert (logits(running, ids) - logits(plain, ids)).abs().max() < 2e-3
    q_proj = running.get_submodule("model.layers.0.self_attn.q_proj")
    restored = q_proj.quant_method.restore(q_proj).dequantize()
    assert torch.equal(restored, plain.get_submodule("model.layers.0.self_attn.q_proj").weight)


@pytest.mark.parametrize("name", DENSE)
def test_in_bfloat16_the_model_is_as_good_as_the_tools(shared, name):
    folder = shared / "models" / name
    expected = golden(folder)
    model = quantdock.load(folder, device="cpu", dtype="bfloat16")
    told, ours = expected["logits_dequant"], logits(model, expected["input_ids"])
    p, q = log_softmax(told.double(), -1), log_softmax(ours.double(), -1)
    assert (p.exp() * (p - q)).sum(-1).mean() < 1e-3


@pytest.mark.parametrize("name", DENSE)
def test_plans_before_and_after_loading_say_the_same(shared, name):
    folder = shared / "models" / name
    before = quantdock.explain(folder, platform="cpu")
    after = quantdock.load(folder, device="cpu", dtype="float32").quantdock_plan
    for plan in (before, after):
        quantized = [layer for layer in plan.layers if layer.decision == "quantized"]
        assert {layer.scheme for layer in quantized} == {SCHEMES[name]}
        assert (len(quantized), plan.totals.errors) == (35, 0)
    assert {(p.prefix, p.n, p.k) for p in before.layers} == {
        (p.prefix, p.n, p.k) for p in after.layers
    }
    assert not [warning for warning in before.warnings if "loading would stop" in warning]


@pytest.mark.parametrize("name", ["gptq-w4-g64-desc", "awq-w4-g32"])
def test_every_command_takes_them(shared, capsys, name):
    folder = str(shared / "models" / name)
    assert run_cli(["explain", folder]) == 0
    assert "35 of 37 quantized" in capsys.readouterr().out
    assert run_cli(["doctor", folder]) == 0
    assert "Nothing is wrong" in " ".join(capsys.readouterr().out.split())
    assert run_cli(["generate", folder, PROMPT, "--max-new-tokens", "8"]) == 0
    assert "there was a" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["gptq-w4-g64-desc", "gptq-w4-g64-asym-v1", "awq-w4-g32"])
def test_a_saved_model_is_the_same_model(shared, tmp_path, name):
    folder = shared / "models" / name
    model = quantdock.load(folder, device="cpu", dtype="float32")
    model.save_pretrained(tmp_path)
    again = quantdock.load(tmp_path, device="cpu", dtype="float32")
    ids = golden(folder)["input_ids"]
    assert torch.equal(logits(again, ids), logits(model, ids))
    assert again.quantdock_plan.method == model.quantdock_plan.method


@pytest.mark.parametrize("name", ["gptq-w4-g64-desc", "awq-w4-g32"])
def test_s31_reloading_follows_the_values_and_keeps_the_addresses(shared, tmp_path, name):
    folder = shared / "models" / name
    copy = shutil.copytree(folder, tmp_path / "b")

    def negate(tensors):
        for key in [key for key in tensors if key.endswith("down_proj.scales")]:
            tensors[key] = -tensors[key]

    edit_tensors(copy, negate)
    ids = golden(folder)["input_ids"]
    model = quantdock.load(folder, device="cpu", dtype="float32")
    first = logits(model, ids)
    places = {name: p.data_ptr() for name, p in model.named_parameters()}
    quantdock.reload(model, copy)
    assert not torch.equal(logits(model, ids), first)
    changed = quantdock.load(copy, device="cpu", dtype="float32")
    assert torch.equal(logits(model, ids), logits(changed, ids))
    quantdock.reload(model, folder)
    assert torch.equal(logits(model, ids), first)
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == places


@pytest.mark.parametrize("name", DENSE)
def test_two_ranks_hold_the_whole_weights(shared, name):
    folder = shared / "models" / name
    whole = quantdock.load(folder, "none", device="cpu", dtype="float32")
    halves = [
        quantdock.load(
            folder, device="cpu", dtype="float32", tp=quantdock.ParallelGroup(rank=rank, size=2)
        )
        for rank in range(2)
    ]
    for layer, dimension in (
        ("self_attn.q_proj", 0),
        ("self_attn.o_proj", 1),
        ("mlp.down_proj", 1),
    ):
        path = f"model.layers.0.{layer}"
        parts = [half.get_submodule(path) for half in halves]
        found = [part.quant_method.restore(part).dequantize() for part in parts]
        assert torch.equal(torch.cat(found, dimension), whole.get_submodule(path).weight)
    plan = halves[1].quantdock_plan
    assert {layer.scheme for layer in plan.layers if layer.decision == "quantized"} == {
        SCHEMES[name]
    }
