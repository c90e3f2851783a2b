"""fp4 and fp6 on disk: what llm-compressor writes, what libraries read, and the same logits."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import quantdock
from model_outputs import logits
from quantdock.numerics import unpack_bytes

torch.set_num_threads(1)

TO = ("mxfp4", "mxfp4a4", "mxfp6", "mxfp6a8", "nvfp4", "modelopt", "quark")
LIBRARY = ("mxfp4", "mxfp6", "nvfp4")
# transformers warns that the file's block counts, which is what is wanted.
foreign = pytest.mark.filterwarnings("ignore:You passed `quantization_config`")


def load(folder, quantization=None, dtype="float32", **options):
    return quantdock.load(folder, quantization, device="cpu", dtype=dtype, **options)


def load_elsewhere(folder):
    """Return the model as transformers loads it, decoded by compressed-tensors."""
    pytest.importorskip("compressed_tensors", reason="needs the package compressed-tensors")
    config = transformers.CompressedTensorsConfig(dequantize=True)
    options = {"dtype": torch.bfloat16, "quantization_config": config}
    return AutoModelForCausalLM.from_pretrained(folder, **options).eval()


@pytest.mark.parametrize(("to", "name"), [("mxfp4", "ct-mxfp4a16"), ("mxfp4a4", "ct-mxfp4")])
def test_every_byte_is_that_of_another_tool(shared, tmp_path, to, name):
    folder = shared / "models" / "bases" / "stories260k-d128"
    target = quantdock.convert_checkpoint(folder, tmp_path / "out", to).target
    ours = load_file(target / "model.safetensors")
    theirs = load_file(shared / "models" / name / "model.safetensors")
    assert ours.keys() == theirs.keys()
    stored = [key for key in ours if "_proj." in key]
    assert len(stored) == 35 * 2
    for key in stored:
        assert torch.equal(ours[key].view(torch.uint8), theirs[key].view(torch.uint8)), key


def test_scales_in_nvfp4_are_those_of_another_tool_and_codes_but_for_ties(shared, tmp_path):
    folder = shared / "models" / "bases" / "stories260k-d128"
    target = quantdock.convert_checkpoint(folder, tmp_path / "out", "nvfp4").target
    ours = load_file(target / "model.safetensors")
    theirs = load_file(shared / "models" / "ct-nvfp4a16" / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for key, tensor in ours.items():
        if key.endswith("weight_scale"):
            assert torch.equal(tensor.view(torch.uint8), theirs[key].view(torch.uint8)), key
        elif key.endswith("global_scale"):
            assert torch.equal(tensor.reciprocal(), theirs[key].reciprocal()), key
    codes = [key for key in ours if key.endswith("weight_packed")]
    mine, other = (
        torch.cat([unpack_bytes(tensors[key], bits=4).flatten().int() for key in codes])
        for tensors in (ours, theirs)
    )
    steps = (mine - other).abs()
    assert steps.max() == 1 and (steps > 0).sum() < 300 and steps.numel() == 983_040


@foreign
@pytest.mark.parametrize("to", LIBRARY)
def test_compressed_tensors_reads_equal_weights(make_toy, tmp_path, to):
    target = quantdock.convert_checkpoint(make_toy(), tmp_path / "out", to).target
    ours, theirs = load(target, "none", "bfloat16"), load_elsewhere(target)
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter, theirs.get_parameter(name)), name
    assert torch.equal(logits(ours), logits(theirs))


@pytest.mark.parametrize("to", LIBRARY)
def test_compressed_tensors_decodes_equal_experts(shared, tmp_path, to):
    """The library knows no experts of transformers; its compressors take modules one by one."""
    compressors = pytest.importorskip("compressed_tensors.compressors")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    folder = shared / "models" / "bases" / "stories260k-mixtral-d128"
    target = quantdock.convert_checkpoint(folder, tmp_path / "out", to).target
    plain = quantdock.convert_checkpoint(target, tmp_path / "plain", "none").target
    decoded, stored = (load_file(f / "model.safetensors") for f in (plain, target))
    block = json.loads((target / "config.json").read_text())["quantization_config"]
    (group,) = quantization.QuantizationConfig.model_validate(block).config_groups.values()
    compressor = compressors.BaseCompressor.get_value_from_registry(block["format"])
    experts = [name for name in decoded if ".experts." in name]
    assert len(experts) == 5 * 4 * 3
    for name in experts:
        prefix = name.removesuffix("weight")
        own = {n.removeprefix(prefix): t for n, t in stored.items() if n.startswith(prefix)}
        assert torch.equal(compressor.decompress(own, group)["weight"], decoded[name]), name


@foreign
def test_transformers_decodes_equal_experts_of_gpt_oss(shared, tmp_path):
    folder = shared / "models" / "bases" / "gptoss-random"
    target = quantdock.convert_checkpoint(folder, tmp_path / "out", "mxfp4").target
    options = {"quantization_config": transformers.Mxfp4Config(dequantize=True)}
    theirs = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16, **options)
    for name, parameter in load(target, "none", "bfloat16").named_parameters():
        assert torch.equal(parameter, theirs.get_parameter(name)), name
    model = load(target)
    model.save_pretrained(tmp_path / "again")
    files = [load_file(f / "model.safetensors") for f in (target, tmp_path / "again")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(tensor, files[1][name]) for name, tensor in files[0].items())


@pytest.mark.parametrize("to", ["mxfp4", "nvfp4"])
def test_layers_with_one_store_are_saved_apart(make_toy, tmp_path, to):
    target = quantdock.convert_checkpoint(make_toy(), tmp_path / "out", to).target
    model = load(target, merge=True)
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(load(tmp_path / "again", merge=True)), logits(model))
    assert torch.equal(logits(load(tmp_path / "again")), logits(load(target)))


@pytest.mark.parametrize("to", TO)
def test_it_runs_and_is_saved_again_in_the_same_form(make_toy, tmp_path, to):
    target = quantdock.convert_checkpoint(make_toy(), tmp_path / "out", to).target
    model = load(target)
    assert model.quantdock_plan.unused == model.quantdock_plan.notes == ()
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(load(tmp_path / "again")), logits(model))
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("out", "again")]
    assert files[0].keys() == files[1].keys()
    for name, tensor in files[0].items():
        other = files[1][name]
        if "global_scale" in name:
            assert torch.equal(tensor.reciprocal(), other.reciprocal())
        elif "_proj" in name:
            assert torch.equal(tensor[None].view(torch.uint8), other[None].view(torch.uint8)), name
    blocks = [
        json.loads((tmp_path / name / "config.json").read_text())["quantization_config"]
        for name in ("out", "again")
    ]
    assert blocks[0] == blocks[1]


@pytest.mark.parametrize("base", ["stories260k-mixtral-d128", "qwen3moe-random"])
@pytest.mark.parametrize("to", ["mxfp4", "nvfp4"])
def test_experts_are_quantized_and_saved_again(shared, tmp_path, base, to):
    folder = shared / "models" / "bases" / base
    report = quantdock.convert_checkpoint(folder, tmp_path / "out", to)
    experts = [
        key
        for key, tensor in load_file(report.target / "model.safetensors").items()
        if ".experts." in key and tensor.dtype == torch.uint8 and key.endswith("weight_packed")
    ]
    plain = load_file(folder / "model.safetensors")
    assert len(experts) == sum(".experts." in key for key in plain)
    model = load(report.target)
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(load(tmp_path / "again")), logits(model))
    kept = quantdock.convert_checkpoint(folder, tmp_path / "kept", to, ignore=["*.experts.*"])
    assert kept.num_layers == report.num_layers - len(experts)


@pytest.mark.parametrize(
    ("word", "choices"),
    [
        ("mxfp4_online", {}),
        ("mxfp4_online", {"*.o_proj": "mxfp8", "*.down_proj": "fp8_per_channel"}),
        ("quark_mxfp4", {}),
    ],
)
def test_what_was_quantized_at_load_is_saved_so(make_toy, tmp_path, word, choices):
    model = load(make_toy(), word, choices=choices)
    model.save_pretrained(tmp_path / "out")
    again = load(tmp_path / "out")
    assert torch.equal(logits(again), logits(model))
    before, after = (
        {layer.prefix: layer.scheme for layer in m.quantdock_plan.layers} for m in (model, again)
    )
    assert before == after


@pytest.mark.parametrize(
    "name",
    [
        "ct-mxfp4",
        "ct-nvfp4",
        "ct-mixtral-nvfp4a16",
        "modelopt-nvfp4-w4a16",
        "modelopt-fp8",
        "quark-mxfp6-e2m3",
        "quark-mxfp6-e3m2",
    ],
)
def test_files_of_other_tools_are_saved_in_their_own_form(shared, tmp_path, name):
    folder = shared / "models" / name
    model = load(folder)
    model.save_pretrained(tmp_path / "out")
    assert torch.equal(logits(load(tmp_path / "out")), logits(model))
    methods = [
        json.loads((where / "config.json").read_text())["quantization_config"]["quant_method"]
        for where in (folder, tmp_path / "out")
    ]
    assert methods[0] == methods[1]
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "out"))
    assert before.keys() == after.keys()
