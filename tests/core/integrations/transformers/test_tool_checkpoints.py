"""Checkpoints of AutoRound, Quark and ModelOpt, whole: logits, commands, saving, bad files."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file

import quantdock
from model_outputs import kl, logits
from quantdock.cli.app import run as run_cli
from quantdock.errors import ConfigError, FormatError, LoadError, MismatchError, SaveError
from tests.toy_files import edit_config, edit_tensors
from third_party import block_of

torch.set_num_threads(1)

WEIGHT_ONLY = (
    "autoround-awq-w4-g32",
    "autoround-gptq-w2-g32",
    "autoround-gptq-w4-asym",
    "autoround-native-w4-g32",
    "modelopt-fp8-pb-wo",
    "modelopt-int4-awq",
    "modelopt-int8-wo",
    "modelopt-nvfp4-w4a16",
)
# Their golden logits are those of weights that Quark has rounded to bfloat16.
ROUNDED = (
    "quark-int8",
    "quark-int4-wo-32",
    "quark-int4-wo-32-order",
    "quark-uint4-wo-32",
    "quark-fp8-fp8mode",
    "quark-qwen3moe-fp8",
    "quark-mxfp6-e2m3",
    "quark-mxfp6-e3m2",
)
# KL(the tool's own forward || ours), which quantize activations alike: ours stays within reach of
# what quantizing activations changes at all, KL(dequantized weights || the tool), as measured.
ACTIVATIONS = {
    "modelopt-fp8": (0.0041, 0.0028),
    "modelopt-fp8-pcpt": (0.0038, 0.0022),
    "modelopt-int8-sq": (0.0010, 0.0017),
    "quark-int8": (0.0047, 0.0036),
    "quark-fp8-fp8mode": (0.0031, 0.0020),
}
# The same in the tool's own bfloat16: codes of 6 bits follow each rounding before them.
IN_BFLOAT16 = {"quark-mxfp6-e2m3": (0.0031, 0.0025), "quark-mxfp6-e3m2": (0.0075, 0.0061)}


def golden(folder):
    return load_file(folder / "golden.safetensors")


@pytest.mark.parametrize("name", WEIGHT_ONLY)
@pytest.mark.parametrize("quantization", [None, "none"])
def test_weights_alone_give_the_logits_of_the_dequantized_weights(shared, name, quantization):
    folder = shared / "models" / name
    expected = golden(folder)
    model = quantdock.load(folder, quantization, device="cpu", dtype="float32")
    ours = logits(model, expected["input_ids"])
    assert (ours - expected["logits_dequant"]).abs().max() < 2e-3
    assert model.quantdock_plan.totals.errors == 0


@pytest.mark.parametrize("name", ROUNDED)
def test_decoded_weights_in_bfloat16_give_the_logits_of_quarks(shared, name):
    folder = shared / "models" / name
    expected = golden(folder)
    model = quantdock.load(folder, "none", device="cpu", dtype="bfloat16").float()
    ours = logits(model, expected["input_ids"])
    assert (ours - expected["logits_dequant"]).abs().max() < 2e-3


@pytest.mark.parametrize("name", [*ACTIVATIONS, *IN_BFLOAT16])
def test_quantized_activations_stay_close_to_the_tools_own_forward(shared, name):
    folder, dtype = shared / "models" / name, "bfloat16" if name in IN_BFLOAT16 else "float32"
    measured, change = {**ACTIVATIONS, **IN_BFLOAT16}[name]
    expected = golden(folder)
    model = quantdock.load(folder, device="cpu", dtype=dtype)
    ours = logits(model, expected["input_ids"])
    divergence = float(kl(expected["logits_tool"].float(), ours).mean())
    assert divergence < 1.1 * measured < 2 * change


def test_experts_of_an_autoround_file_run_as_they_are_stored_and_decoded(shared):
    folder = shared / "models" / "autoround-mixtral-gptq-w4"
    expected = golden(folder)
    for quantization in (None, "none"):
        model = quantdock.load(folder, quantization, device="cpu", dtype="float32")
        ours = logits(model, expected["input_ids"])
        assert (ours - expected["logits_dequant"]).abs().max() < 2e-3
    plan = quantdock.explain(folder, platform="cpu:generic")
    assert plan.totals.quantized == 5 * (4 + 4 * 3)
    assert not [warning for warning in plan.warnings if "loading would stop" in warning]


ONE_OF_EACH = (
    "autoround-native-w4-g32",
    "quark-uint4-wo-32",
    "quark-mxfp6-e2m3",
    "modelopt-int4-awq",
    "modelopt-nvfp4-w4a16",
)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_command_takes_them(shared, capsys, name):
    folder = str(shared / "models" / name)
    assert run_cli(["explain", folder]) == 0
    assert "35 of 37 quantized" in capsys.readouterr().out
    assert run_cli(["doctor", folder]) == 0
    assert "Nothing is wrong" in " ".join(capsys.readouterr().out.split())
    assert run_cli(["generate", folder, "Once upon a time", "--max-new-tokens", "8"]) == 0
    assert "there was a little" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["modelopt-fp8", "modelopt-fp8-pb-wo", "modelopt-fp8-pcpt"])
def test_modelopts_fp8_has_a_name_of_its_own(shared, name):
    folder = shared / "models" / name
    asked = quantdock.explain(folder, platform="cpu:generic", quantization="modelopt_fp8")
    plain = quantdock.explain(folder, platform="cpu:generic")
    assert (asked.method, plain.method) == ("modelopt_fp8", "modelopt")
    assert [layer.scheme for layer in asked.layers] == [layer.scheme for layer in plain.layers]
    with pytest.raises(MismatchError, match="modelopt_fp8 was asked for"):
        quantdock.explain(
            shared / "models" / "modelopt-int8-wo", "cpu:generic", quantization="modelopt_fp8"
        )


@pytest.mark.parametrize(
    "name", ["autoround-native-w4-g32", "quark-int8", "quark-uint4-wo-32", "modelopt-int8-wo"]
)
def test_a_saved_model_is_the_same_model(shared, tmp_path, name):
    folder = shared / "models" / name
    model = quantdock.load(folder, device="cpu", dtype="float32")
    ids = golden(folder)["input_ids"]
    model.save_pretrained(tmp_path)
    again = quantdock.load(tmp_path, device="cpu", dtype="float32")
    assert torch.equal(logits(again, ids), logits(model, ids))


@pytest.mark.parametrize("name", ["modelopt-int4-awq", "modelopt-int8-sq"])
def test_a_model_with_input_multipliers_says_that_it_cannot_be_saved(shared, tmp_path, name):
    model = quantdock.load(shared / "models" / name, device="cpu", dtype="float32")
    with pytest.raises(SaveError, match="its inputs are multiplied first") as caught:
        model.save_pretrained(tmp_path / "out")
    assert "quantization='none'" in caught.value.todo
    assert not (tmp_path / "out").exists()


Q = "model.layers.0.self_attn.q_proj"


def copied(shared, tmp_path, name, block=None, edit=None):
    """Return a copy of a checkpoint, fields of its block changed and its tensors edited."""
    folder = tmp_path / name
    shutil.copytree(shared / "models" / name, folder)
    for side in ("hf_quant_config.json", "quantization_config.json"):
        (folder / side).unlink(missing_ok=True)
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)
    edit_config(folder, quantization_config={**block_of(folder), **(block or {})})
    if edit is not None:
        edit_tensors(folder, edit)
    return folder


def without(name):
    def edit(tensors):
        del tensors[f"{Q}.{name}"]

    return edit


def of_width(name, columns):
    """Let the tensor called ``name`` lose all but its first columns."""

    def edit(tensors):
        tensors[f"{Q}.{name}"] = tensors[f"{Q}.{name}"][..., :columns].contiguous()

    return edit


def filled(name, value):
    def edit(tensors):
        tensors[f"{Q}.{name}"].fill_(value)

    return edit


@pytest.mark.parametrize(
    ("name", "block", "edit", "text"),
    [
        ("autoround-native-w4-g32", {"bits": 8}, None, "they fit bits = 4, group_size = 32"),
        ("autoround-native-w4-g32", {"group_size": 48}, None, "of K = 128, not a multiple of 48"),
        ("autoround-native-w4-g32", None, without("scales"), f"{Q}.scales"),
        ("autoround-native-w4-g32", None, filled("scales", float("nan")), f"{Q}.scales"),
        (
            "quark-int4-wo-32",
            None,
            of_width("weight_zero_point", 16),
            "weight_zero_point is [4, 16], not [4, 32]",
        ),
        ("quark-uint4-wo-32", None, without("weight_zero_point"), "weight_zero_point"),
        ("quark-int8", None, filled("weight_zero_point", 1), "weight_zero_point is not 0"),
        ("modelopt-int4-awq", None, of_width("weight", 64), f"{Q}.weight does not fit"),
        ("modelopt-int8-sq", None, without("input_scale"), "input_scale"),
        ("modelopt-int8-sq", None, filled("weight_scale", float("inf")), f"{Q}.weight_scale"),
        ("modelopt-int8-sq", None, filled("pre_quant_scale", float("nan")), f"{Q}.pre_quant_scale"),
        ("modelopt-fp8", {"quant_algo": "W8A16"}, None, "weight is float8_e4m3fn, not int8"),
        ("modelopt-fp8", {"quant_algo": "NVFP4"}, None, "weight is float8_e4m3fn, not uint8"),
        ("modelopt-nvfp4-w4a16", {"quant_algo": "NVFP4"}, None, "input_scale"),
        ("modelopt-nvfp4-w4a16", {"quant_algo": "FP8"}, None, f"{Q}.weight_scale has 2048"),
        ("modelopt-nvfp4-w4a16", {"quant_algo": "MXFP8"}, None, f"{Q}.weight_scale"),
        ("modelopt-nvfp4-w4a16", None, without("weight_scale_2"), f"{Q}.weight_scale_2"),
        (
            "modelopt-nvfp4-w4a16",
            None,
            of_width("weight_scale", 4),
            "K = 64 as weight_scale [256, 4]",
        ),
        ("modelopt-nvfp4-w4a16", None, of_width("weight", 60), "60 bytes a row"),
        ("modelopt-nvfp4-w4a16", None, filled("weight_scale_2", float("nan")), "weight_scale_2"),
        ("modelopt-nvfp4-w4a16", None, filled("weight_scale", -1.0), f"{Q}.weight_scale"),
        ("quark-mxfp6-e2m3", None, filled("weight_scale", 255), f"{Q}.weight_scale"),
        ("quark-mxfp6-e2m3", None, of_width("weight", 72), "is [256, 72] (K = 96), not of"),
        ("quark-mxfp6-e2m3", None, without("weight_scale"), f"{Q}.weight_scale"),
    ],
)
def test_a_file_that_contradicts_itself_is_an_error_that_names_it(
    shared, tmp_path, name, block, edit, text
):
    folder = copied(shared, tmp_path, name, block, edit)
    with pytest.raises((ConfigError, FormatError, LoadError)) as caught:
        quantdock.load(folder, device="cpu", dtype="float32")
    assert text in str(caught.value), str(caught.value)


def test_a_multiplier_that_no_layer_takes_is_never_dropped(shared, tmp_path):
    def edit(tensors):
        tensors[f"{Q}.pre_quant_scale"] = torch.ones(128, dtype=torch.bfloat16)

    folder = copied(shared, tmp_path, "modelopt-fp8", edit=edit)
    with pytest.raises(LoadError, match=f"{Q}.pre_quant_scale"):
        quantdock.load(folder, device="cpu", dtype="float32")
