"""MX and NV checkpoints of llm-compressor: exact weights, its logits, text, damaged files."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

import quantdock
from model_outputs import kl, logits
from quantdock.errors import ConfigError, LoadError
from toy_files import edit_tensors
from toy_ranks import in_threads

torch.set_num_threads(1)

MXFP4, MXFP8 = "fp4_e2m1[1x32]:e8m0:even", "fp8_e4m3[1x32]:e8m0:ceil"
NVFP4 = "fp4_e2m1[1x16]:e4m3:second[*x*]"
W4A4 = f"{NVFP4} x fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]"
SCHEMES = {
    "ct-mxfp4": f"{MXFP4} x {MXFP4}:dynamic",
    "ct-mxfp4a16": MXFP4,
    "ct-mxfp8": f"{MXFP8} x {MXFP8}:dynamic",
    "ct-nvfp4": W4A4,
    "ct-nvfp4a16": NVFP4,
    "ct-mixtral-nvfp4a16": NVFP4,
    "ct-mixtral-fp8-dynamic": "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
}
MIXTRAL = "ct-mixtral-nvfp4a16"
LAYER = "model.layers.1.block_sparse_moe"


def load(folder, quantization=None, dtype="float32", **options):
    return quantdock.load(folder, quantization, device="cpu", dtype=dtype, **options)


def weights_of(model, name):
    """Return the weight that the tool calls ``name``, decoded; of experts the down projection."""
    layer, _, rest = name.partition(".block_sparse_moe.experts.")
    if not rest:
        linear = model.get_submodule(name)
        return linear.weight
    number, role = rest.split(".")
    assert role == "w2"
    return model.get_submodule(f"{layer}.mlp.experts").down_proj[int(number)]


@pytest.mark.parametrize("name", SCHEMES)
def test_decoded_weights_are_bit_exact(shared, name):
    """The library decodes fp4 in bf16, and its logits are those of weights rounded to that."""
    folder = shared / "models" / name
    expected = load_file(folder / "golden.safetensors")
    plain = load(folder, "none", dtype="bfloat16")
    keys = [key for key in expected if key.startswith("dequant.")]
    for key in keys:
        ours = weights_of(plain, key.removeprefix("dequant.").removesuffix(".weight"))
        assert torch.equal(ours, expected[key].to(torch.bfloat16)), key
    assert len(keys) == 2
    wide = plain if "fp4" in name else load(folder, "none")
    decoded = logits(wide.float(), expected["input_ids"])
    assert (decoded - expected["logits_dequant"]).abs().max() < 2e-3  # as the manifest says


@pytest.mark.parametrize("name", [name for name in SCHEMES if "fp8-dynamic" not in name])
def test_logits_are_those_of_the_library(shared, name):
    folder = shared / "models" / name
    expected = load_file(folder / "golden.safetensors")
    model = load(folder)
    assert {layer.scheme for layer in model.quantdock_plan.layers} - {None} == {SCHEMES[name]}
    ours = logits(model, expected["input_ids"])
    assert kl(expected["logits_tool"], ours).max() < 1e-9
    if model.quantdock_plan.layers[1].scheme == MXFP4:
        assert (ours - expected["logits_dequant"]).abs().max() < 2e-3


def test_a_mixture_in_fp8_runs_as_the_library_does(shared):
    folder = shared / "models" / "ct-mixtral-fp8-dynamic"
    expected = load_file(folder / "golden.safetensors")
    ours = logits(load(folder), expected["input_ids"])
    assert kl(expected["logits_tool"], ours).mean() < 0.005  # its experts round other activations


@pytest.mark.parametrize("name", ["ct-mxfp4", "ct-nvfp4", MIXTRAL])
def test_text_ranks_and_merged_stores(shared, name):
    folder = shared / "models" / name
    ids = load_file(folder / "golden.safetensors")["input_ids"]
    model = load(folder)
    one = logits(model, ids)
    made = model.generate(ids[:, :8], max_new_tokens=16, do_sample=False)
    assert (made[0, :24] == ids[0, :24]).float().mean() > 0.8
    first, second = in_threads(2, lambda group: logits(load(folder, tp=group), ids))
    assert torch.equal(first, second)
    assert (first - one).abs().max() < 1e-4
    merged = load(folder, merge=True)
    assert any(note.startswith("merged: ") for note in merged.quantdock_plan.notes)
    assert torch.equal(logits(merged, ids), one)


@pytest.mark.parametrize("name", SCHEMES)
def test_plans_are_exact_and_doctor_finds_nothing(shared, name):
    folder = shared / "models" / name
    plan = quantdock.explain(folder, platform="cpu:generic")
    assert plan.totals.errors == 0
    assert {layer.scheme for layer in plan.layers} - {None} == {SCHEMES[name]}
    assert not [warning for warning in plan.warnings if "loading would stop" in warning]
    if name in ("ct-nvfp4", "ct-mxfp4a16", MIXTRAL):
        report = quantdock.doctor(folder, platform="cpu")
        assert report.status == "pass", report.to_json()


@pytest.fixture(scope="module")
def quantized_inputs(shared, tmp_path_factory):
    """Return the mixture in NVFP4 with its inputs quantized, too: W4A4."""
    folder = tmp_path_factory.mktemp("experts") / "w4a4"
    shutil.copytree(shared / "models" / MIXTRAL, folder)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    config = json.loads((folder / "config.json").read_text())
    (group,) = config["quantization_config"]["config_groups"].values()
    group["input_activations"] = {**group["weights"], "dynamic": "local"}
    (folder / "config.json").write_text(json.dumps(config))

    def add(tensors):
        for name in [name for name in tensors if name.endswith(".weight_packed")]:
            tensors[name.replace("weight_packed", "input_global_scale")] = torch.tensor([300.0])

    edit_tensors(folder, add)
    return folder


@pytest.fixture
def damaged(quantized_inputs, tmp_path):
    """Return a function that writes the mixture with one value of some tensors, or without them."""
    folder = tmp_path / "damaged"
    shutil.copytree(quantized_inputs, folder)

    def change(part, value=None, experts=(2,), roles=("gate", "up", "down")):
        names = {f"{LAYER}.experts.{e}.{role}_proj.{part}" for e in experts for role in roles}

        def edit(tensors):
            assert names <= tensors.keys()
            for name in names:
                if value is None:
                    del tensors[name]
                else:
                    tensors[name] = torch.tensor([value])

        edit_tensors(folder, edit)
        return folder

    return change


def test_experts_quantize_their_inputs(quantized_inputs, shared):
    expected = load_file(shared / "models" / MIXTRAL / "golden.safetensors")
    model = load(quantized_inputs)
    experts = [layer for layer in model.quantdock_plan.layers if layer.kind == "experts"]
    assert experts and {layer.scheme for layer in experts} == {W4A4}
    ours = logits(model, expected["input_ids"])
    assert 1e-3 < kl(expected["logits_dequant"], ours).mean() < 0.2


def test_experts_without_an_input_scale_are_named(damaged):
    folder = damaged("input_global_scale", experts=(1, 2))
    with pytest.raises(LoadError, match="6 tensors of the model are in no file") as caught:
        load(folder)
    missing = {
        f"{LAYER}.experts.{expert}.{role}_proj.input_global_scale"
        for expert in (1, 2)
        for role in ("gate", "up", "down")
    }
    assert set(caught.value.names) == missing
    assert all(name in str(caught.value) for name in missing)
    plan = quantdock.explain(folder)
    stops = [w for w in plan.warnings if "loading would stop: input_global_scale is missing" in w]
    assert stops and "experts.{1-2}" in stops[0]
    load(folder, "none")  # the weights are all there


def test_many_experts_without_one_are_named_by_number(damaged):
    folder = damaged("input_global_scale", experts=(0, 1, 2, 3))
    with pytest.raises(LoadError, match=rf"12 tensors[\s\S]*{LAYER}\.experts\.\{{0-3\}}\.up_proj"):
        load(folder)


@pytest.mark.parametrize("value", [0.0, torch.inf, torch.nan])
@pytest.mark.parametrize("part", ["input_global_scale", "weight_global_scale"])
def test_a_divisor_that_is_none_is_named_with_its_value(damaged, part, value):
    folder = damaged(part, value, roles=("up",))
    text = rf"{LAYER}\.experts\.2\.up_proj\.{part} \({value}\)"
    with pytest.raises(LoadError, match=rf"scales that no weight can have[\s\S]*stored in {text}"):
        load(folder)
    if part == "weight_global_scale":
        with pytest.raises(LoadError, match=text):
            load(folder, "none")
        told = [found.what for found in quantdock.doctor(folder, platform="cpu")["scales"].findings]
        assert any("experts.2.up_proj" in what and "second scale" in what for what in told), told


def test_experts_without_a_global_scale_are_all_named(damaged):
    folder = damaged("weight_global_scale", experts=(1, 3), roles=("gate",))
    texts = [rf"{LAYER}\.experts\.{e}\.gate_proj\.weight_global_scale is missing" for e in (1, 3)]
    with pytest.raises(ConfigError, match="[\\s\\S]*".join(texts)):
        load(folder)


def test_a_missing_global_scale_of_a_weight_is_an_error_everywhere(damaged):
    folder = damaged("weight_global_scale", roles=("up",))
    for quantization in (None, "none"):
        with pytest.raises(
            ConfigError, match=rf"{LAYER}\.experts\.2\.up_proj\.weight_global_scale is missing"
        ) as caught:
            load(folder, quantization)
        assert "download the file again" in caught.value.todo
        assert "quantization='none'" not in str(caught.value)
    assert quantdock.explain(folder).totals.errors == 1


@pytest.mark.parametrize("name", ["ct-nvfp4", "ct-nvfp4a16"])
def test_nvfp4_is_saved_as_it_was_stored(shared, tmp_path, name):
    source = shared / "models" / name / "model.safetensors"
    load(source.parent).save_pretrained(tmp_path / "out")
    stored, saved = load_file(source), load_file(tmp_path / "out" / "model.safetensors")
    codes = [n for n in stored if n.endswith((".weight_packed", ".weight_scale"))]
    assert codes
    for key in codes:
        assert torch.equal(saved[key].view(torch.uint8), stored[key].view(torch.uint8)), key
