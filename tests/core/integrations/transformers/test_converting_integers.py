"""Integer dialects, written by round-to-nearest and read back: by QuantDock and by others."""

from __future__ import annotations

import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import quantdock
from model_outputs import logits
from toy_files import edit_config

torch.set_num_threads(1)

# transformers warns that the file's block counts, which is what is wanted.
foreign = pytest.mark.filterwarnings("ignore:You passed `quantization_config`")


def load(folder, quantization=None, dtype="float32"):
    return quantdock.load(folder, quantization, device="cpu", dtype=dtype)


def load_elsewhere(folder, dtype=torch.float32, dequantize=True):
    """Return the model as transformers loads it, through compressed-tensors."""
    pytest.importorskip("compressed_tensors", reason="needs the package compressed-tensors")
    config = transformers.CompressedTensorsConfig(dequantize=True)
    options = {"quantization_config": config} if dequantize else {}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options).eval()


INTEGERS = [
    ("w4a16", {}),
    ("w4a16", {"symmetric": False, "group_size": 64}),
    ("w4a16", {"group_size": -1}),
    ("w8a16", {}),
    ("w8a16", {"symmetric": False}),
    ("compressed-tensors", {"bits": 3, "group_size": 32}),
    ("w8a8", {}),
]


@foreign
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("to", "options"), INTEGERS)
def test_integers_are_the_same_to_compressed_tensors(make_toy, tmp_path, to, options, dtype):
    folder = make_toy()
    edit_config(folder, dtype=dtype)
    target = quantdock.convert_checkpoint(folder, tmp_path / "out", to, **options).target
    ours, theirs = load(target, "none", dtype), load_elsewhere(target, getattr(torch, dtype))
    for name, parameter in ours.named_parameters():
        other = theirs.get_parameter(name)
        assert parameter.dtype == other.dtype and torch.equal(parameter, other), name
    assert torch.equal(logits(ours), logits(theirs))


@foreign
@pytest.mark.parametrize("to", ["w4a16", "w8a16", "w8a8"])
def test_transformers_rounds_weights_to_the_dtype_of_their_scales(make_toy, tmp_path, to):
    folder = make_toy()
    edit_config(folder, dtype="bfloat16")
    target = quantdock.convert_checkpoint(folder, tmp_path / "out", to).target
    layer = "model.layers.0.mlp.up_proj.weight"
    ours, theirs = (m.get_parameter(layer) for m in (load(target, "none"), load_elsewhere(target)))
    assert ours.dtype == theirs.dtype == torch.float32 and not torch.equal(ours, theirs)
    assert torch.equal(ours.bfloat16().float(), theirs)


@foreign
@pytest.mark.parametrize(
    ("to", "options", "tolerance"),
    [("w4a16", {}, 1e-5), ("w8a8", {}, 2e-2), ("w8a8", {"symmetric": False}, 2e-2)],
)
def test_compressed_tensors_computes_the_same_with_integers(
    make_toy, tmp_path, to, options, tolerance
):
    """It scales inputs by amax / 127.5, where QuantDock takes amax / 127: not bit for bit."""
    target = quantdock.convert_checkpoint(make_toy(), tmp_path / "out", to, **options).target
    ours, theirs = logits(load(target)), logits(load_elsewhere(target, dequantize=False))
    assert (ours - theirs).norm() / theirs.norm() < tolerance


@pytest.mark.parametrize(
    ("to", "options"),
    [
        ("gptq", {}),
        ("gptq", {"bits": 3, "group_size": 32, "symmetric": False}),
        ("gptq", {"bits": 8, "group_size": -1}),
        ("awq", {}),
        ("awq", {"symmetric": True, "group_size": 64}),
        ("w8a8_int8", {}),
    ],
)
def test_other_integer_dialects_run_and_stand_for_their_codes(make_toy, tmp_path, to, options):
    folder = make_toy("qwen2", tie_word_embeddings=True)
    choices = {"*.layers.0.*.o_proj": "none"}
    target = quantdock.convert_checkpoint(
        folder, tmp_path / "out", to, choices=choices, **options
    ).target
    model, decoded = load(target), load(target, "none")
    layers = [layer for layer in model.quantdock_plan.layers if layer.kind == "linear"]
    assert sum(layer.decision == "quantized" for layer in layers) == 13
    assert model.quantdock_plan.unused == model.quantdock_plan.ignore_unmatched == ()
    assert model.quantdock_plan.notes == ()
    tolerance = 2e-2 if to == "w8a8_int8" else 1e-5  # inputs in int8, or as they are
    error = (logits(model) - logits(decoded)).norm() / logits(decoded).norm()
    assert error < tolerance
    original = load(folder)
    for name, weight in decoded.named_parameters():
        before = original.get_parameter(name)
        if not name.endswith("_proj.weight") or name.endswith("layers.0.self_attn.o_proj.weight"):
            assert torch.equal(weight, before), name
        else:
            assert (weight - before).norm() / before.norm() < 0.35, name


@pytest.mark.parametrize("to", ["gptq", "awq", "w8a16", "w8a8_int8"])
def test_experts_that_a_choice_names_are_quantized_and_run(shared, tmp_path, to):
    folder = shared / "models" / "bases" / "stories260k-mixtral-d128"
    target = quantdock.convert_checkpoint(
        folder, tmp_path / "out", to, choices={"*.experts.*": to}
    ).target
    model = load(target)
    layers = model.quantdock_plan.layers
    assert {layer.decision for layer in layers if layer.kind == "experts"} == {"quantized"}
    assert model.quantdock_plan.unused == model.quantdock_plan.notes == ()
    story = load_file(shared / "models" / "ct-mxfp8" / "golden.safetensors")["input_ids"]
    with torch.no_grad():
        ours, plain = (m(input_ids=story).logits for m in (model, load(folder)))
    divergence = torch.nn.functional.kl_div(
        ours.log_softmax(-1), plain.log_softmax(-1), log_target=True, reduction="none"
    )
    assert divergence.sum(-1).mean() < (0.06 if to in ("gptq", "awq") else 0.002)


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("gptq-w4-g32-asym-v2", "awq"),
        ("gptq-w4-g64-desc", "compressed-tensors"),
        ("awq-w4-g32", "gptq"),
        ("ct-w4a16-g128", "gptq"),
        ("ct-w4a16-g128", "awq"),
        ("autoround-mixtral-gptq-w4", "compressed-tensors"),
    ],
)
def test_a_moved_checkpoint_runs_as_before(shared, tmp_path, name, to):
    source = shared / "models" / name
    target = quantdock.convert_checkpoint(source, tmp_path / "out", to).target
    before, after = load(source), load(target)
    assert torch.equal(logits(load(target, "none")), logits(load(source, "none")))
    assert (logits(after) - logits(before)).norm() / logits(before).norm() < 1e-5
    assert after.quantdock_plan.unused == after.quantdock_plan.ignore_unmatched == ()


@pytest.mark.parametrize(
    "name",
    ["modelopt-int4-awq", "gptq-w4-g64-desc", "awq-w4-g32", "ct-w8a8-int8"],
)
def test_decoding_on_disk_is_decoding_at_load(shared, tmp_path, name):
    """What inputs are multiplied by is folded into the weights."""
    source = shared / "models" / name
    edited = tmp_path / "in"
    shutil.copytree(source, edited)
    edit_config(edited, dtype="float32")
    plain = quantdock.convert_checkpoint(edited, tmp_path / "out", "none").target
    assert torch.equal(logits(load(plain)), logits(load(source, "none")))
    theirs = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    golden = load_file(source / "golden.safetensors")
    with torch.no_grad():
        decoded = theirs(input_ids=golden["input_ids"]).logits
    expected = golden["logits_dequant"]
    assert (decoded - expected).norm() / expected.norm() < 5e-3  # GPTQModel decodes in float16


def test_routers_of_a_mixture_in_gptq_are_no_lost_entries(shared, tmp_path):
    source = shared / "models" / "bases" / "stories260k-mixtral-d128"
    options = {"group_size": 32, "choices": {"*.experts.*": "gptq"}}
    target = quantdock.convert_checkpoint(source, tmp_path / "out", "gptq", **options).target
    plan = load(target).quantdock_plan
    assert plan.ignore_unmatched == () and plan.totals.quantized > 20
    assert quantdock.explain(target).ignore_unmatched == ()
