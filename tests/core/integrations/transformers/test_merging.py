"""Merged stores of whole models: real files, the same logits, and reasons where there is none."""

from __future__ import annotations

import shutil

import pytest
import torch

import quantdock
from model_outputs import IDS, logits
from quantdock.kernels.scaled_linear import ScaledLinear
from quantdock.layers import LinearBase, MergedStore, MergedView, ParallelGroup
from quantdock.plan import Plan
from toy_files import edit_tensors, write_block_checkpoint

torch.set_num_threads(1)

STORED = (
    "fp8block-128x128",
    "fp8tensor-d128",
    "ct-fp8-static",
    "ct-mxfp8",
    "ct-w8a8-int8",
    "gptq-w4-g32-asym-v2",
    "awq-w4-g32",
)
SHARDS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
)


def load(folder, quantization=None, **options):
    return quantdock.load(folder, quantization, device="cpu", **options)


def stores(model):
    return {name: m for name, m in model.named_modules() if isinstance(m, MergedStore)}


def decline(model):
    return [note for note in model.quantdock_plan.notes if note.startswith("not merged")]


@pytest.mark.parametrize("name", STORED)
def test_files_of_other_tools_give_the_same_logits_from_fewer_stores(shared, name):
    folder = shared / "models" / name
    apart, model = load(folder), load(folder, merge=True)
    assert len(stores(model)) == 10  # two in each of five layers
    assert "merged: 25 layers share 10 stores" in model.quantdock_plan.notes
    assert decline(model) == []
    for ids in (IDS, IDS[:, :1]):
        assert torch.equal(logits(model, ids), logits(apart, ids))
    for name, module in apart.named_modules():
        if isinstance(module, LinearBase):
            view = model.get_submodule(name)
            ours = view.restore() if isinstance(view, MergedView) else None
            weight = ours or view.quant_method.restore(view)
            assert torch.equal(
                weight.dequantize(), module.quant_method.restore(module).dequantize()
            )


def test_each_tensor_scale_of_a_file_stays_that_of_its_rows(shared):
    folder = shared / "models" / "fp8tensor-d128"
    tensors = safetensors(folder)
    model = load(folder, merge=True)
    store = model.get_submodule("model.layers.0.self_attn.qkv_proj")
    rows = [tensors[f"model.layers.0.{name}.weight"].shape[0] for name in SHARDS[:3]]
    scales = [
        tensors[f"model.layers.0.{name}.{last}"].reshape(1).float()
        for name in SHARDS[:3]
        for last in ("weight_scale", "weight_scale_inv")
        if f"model.layers.0.{name}.{last}" in tensors
    ]
    assert len(set(map(float, scales))) == 3
    expected = torch.cat([s.expand(n) for s, n in zip(scales, rows, strict=True)])
    assert torch.equal(store.weight_scale.reshape(-1), expected)


def safetensors(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "gemma3_text", "mixtral"])
@pytest.mark.parametrize("method", ["fp8_per_tensor", "fp8_per_block"])
def test_models_quantized_at_load_run_one_kernel_for_each_store(
    make_toy, monkeypatch, model_type, method
):
    folder = make_toy(model_type)
    apart, model = load(folder, method), load(folder, method, merge=True)
    counts = []
    for each in (apart, model):
        calls = []
        plain = ScaledLinear.apply
        monkeypatch.setattr(
            ScaledLinear,
            "apply",
            lambda *args, plain=plain, calls=calls: calls.append(1) or plain(*args),
        )
        result = logits(each)
        monkeypatch.undo()
        counts.append((len(calls), result))
    saved = sum(len(store.rows) - 1 for store in stores(model).values())
    assert saved > 0 and counts[0][0] - counts[1][0] == saved
    assert torch.equal(counts[0][1], counts[1][1])
    ids = {"input_ids": IDS, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(**ids), apart.generate(**ids))


def test_shards_that_disagree_are_not_merged_and_the_plan_says_so(shared, tmp_path):
    folder = shutil.copytree(shared / "models" / "fp8block-128x128", tmp_path / "mixed")
    name = "model.layers.1.self_attn.k_proj"

    def decode(tensors):
        scale = tensors.pop(f"{name}.weight_scale_inv").float()
        codes = tensors[f"{name}.weight"].float()
        tensors[f"{name}.weight"] = (
            codes
            * scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[
                : codes.shape[0], : codes.shape[1]
            ]
        ).bfloat16()

    folder.chmod(0o755)
    (folder / "model.safetensors").chmod(0o644)
    edit_tensors(folder, decode)
    apart, model = load(folder), load(folder, merge=True)
    assert "model.layers.1.self_attn.qkv_proj" not in stores(model) and len(stores(model)) == 9
    (note,) = decline(model)
    assert "model.layers.1.self_attn.q_proj" in note
    assert note.endswith("k_proj not quantized, the others are")
    assert torch.equal(logits(model), logits(apart))


def test_other_schemes_kernels_and_ranks_are_reasons(make_toy):
    folder = make_toy()
    choices = {"layers.0.self_attn.v_proj": "mxfp8"}
    model = load(folder, "fp8_per_channel", choices=choices, merge=True)
    (note,) = decline(model)
    assert "they have different schemes: q_proj is fp8_e4m3[1x*]" in note
    assert len(stores(model)) == 3
    part = load(folder, "fp8_per_channel", merge=True, tp=ParallelGroup(rank=0, size=2))
    assert not stores(part)
    assert all("ranks divide the model" in note for note in decline(part)) and decline(part)
    assert not stores(load(folder, "fp8_per_channel"))


def test_shards_that_order_their_input_are_not_merged(shared):
    model = load(shared / "models" / "gptq-w4-g64-desc", merge=True)
    assert not stores(model)
    (note,) = decline(model)
    assert note.endswith("each may order or multiply its input in its own way")


def test_the_plan_shows_the_rows_of_each_layer(make_toy):
    model = load(make_toy(), "fp8_per_channel", merge=True)
    layers = {layer.prefix: layer for layer in model.quantdock_plan.layers}
    assert layers["model.layers.0.self_attn.k_proj"].merged == "rows 256-383 of 512, in qkv_proj"
    assert layers["model.layers.1.mlp.gate_proj"].merged == "rows 0-511 of 1024, in gate_up_proj"
    assert layers["model.layers.1.mlp.down_proj"].merged == ""
    assert Plan.from_json(model.quantdock_plan.to_json()) == model.quantdock_plan
    apart = load(model.config._name_or_path, "fp8_per_channel").quantdock_plan
    assert apart.totals == model.quantdock_plan.totals


def test_different_input_scales_are_said(shared, tmp_path):
    folder = shutil.copytree(shared / "models" / "ct-fp8-static", tmp_path / "static")
    (folder / "model.safetensors").chmod(0o644)

    def change(tensors):
        tensors["model.layers.2.self_attn.v_proj.input_scale"] *= 2

    edit_tensors(folder, change)
    warnings = load(folder, merge=True).quantdock_plan.warnings
    (text,) = [text for text in warnings if "input scales of 3 shards differ" in text]
    assert "model.layers.2.self_attn.{}".format("q_proj") in text


def test_scales_of_keys_and_values_beside_the_projections_are_used(make_toy, tmp_path):
    folder = write_block_checkpoint(make_toy(), tmp_path / "block")
    scales = {
        f"model.layers.{i}.self_attn.{kind}_proj.{kind}_scale": torch.tensor(0.25 + i)
        for i in range(2)
        for kind in "kv"
    }
    edit_tensors(folder, lambda tensors: tensors.update(scales))
    apart, model = load(folder), load(folder, merge=True)
    assert len(stores(model)) == 4 and model.quantdock_plan.unused == ()
    assert model.quantdock_plan.attention == apart.quantdock_plan.attention
    assert "KV cache in fp8_e4m3[tensor]" in model.quantdock_plan.summary()
    assert torch.equal(logits(model), logits(apart))


def addresses(model):
    return {name: p.data_ptr() for name, p in model.named_parameters()}


def other_weights(folder, target):
    shutil.copytree(folder, target)

    def change(tensors):
        for name, tensor in tensors.items():
            if "_proj." in name:
                tensors[name] = tensor * 0.75

    edit_tensors(target, change)
    return target


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_reloading_in_place_equals_a_first_load(make_toy, tmp_path, model_type):
    first = make_toy(model_type)
    other = other_weights(first, tmp_path / "other")
    wanted = logits(load(other, "fp8_per_tensor", merge=True))
    model = load(first, "fp8_per_tensor", merge=True)
    where, before = addresses(model), logits(model)
    assert any("bias" in name for name in where) is (model_type == "qwen2")
    quantdock.reload(model, other)
    assert torch.equal(logits(model), wanted) and addresses(model) == where
    quantdock.reload(model, first)
    assert torch.equal(logits(model), before) and addresses(model) == where


def test_a_reload_that_cannot_be_changes_nothing(make_toy, tmp_path):
    first = make_toy("qwen2")
    model = load(first, "fp8", merge=True)
    before = logits(model)
    broken = shutil.copytree(first, tmp_path / "broken")

    def damage(tensors):
        del tensors["model.layers.0.self_attn.k_proj.weight"]
        del tensors["model.layers.0.self_attn.v_proj.bias"]

    edit_tensors(broken, damage)
    with pytest.raises(quantdock.QuantDockError) as caught:
        quantdock.reload(model, broken)
    assert "model.layers.0.self_attn.k_proj: weight is missing" in str(caught.value)
    assert "model.layers.0.self_attn.v_proj.bias is in no file" in str(caught.value)
    assert torch.equal(logits(model), before)
    with pytest.raises(quantdock.QuantDockError) as caught:
        load(broken, "fp8", merge=True)
    assert "model.layers.0.self_attn.k_proj.weight" in str(caught.value)
    assert "model.layers.0.self_attn.v_proj.bias" in str(caught.value)


@pytest.mark.parametrize("method", [None, "fp8_per_channel"])
def test_saving_writes_one_tensor_for_each_layer_of_the_file(make_toy, tmp_path, method):
    folder = make_toy("qwen2")
    if method is None:
        folder = write_block_checkpoint(folder, tmp_path / "block")
    apart, model = load(folder, method), load(folder, method, merge=True)
    apart.save_pretrained(tmp_path / "apart")
    model.save_pretrained(tmp_path / "merged")
    files = [safetensors(tmp_path / name) for name in ("apart", "merged")]
    assert files[0].keys() == files[1].keys()
    for name, tensor in files[0].items():
        assert torch.equal(tensor.view(torch.uint8), files[1][name].view(torch.uint8)), name
    texts = [(tmp_path / name / "config.json").read_text() for name in ("apart", "merged")]
    assert texts[0] == texts[1]


def test_the_state_dict_round_trips(make_toy, tmp_path):
    folder = make_toy()
    first = load(folder, "fp8_per_tensor", merge=True)
    second = load(other_weights(folder, tmp_path / "other"), "fp8_per_tensor", merge=True)
    assert "model.layers.0.self_attn.qkv_proj.weight" in first.state_dict()
    assert not any("q_proj" in name for name in first.state_dict())
    first.load_state_dict(second.state_dict(), strict=True)
    assert torch.equal(logits(first), logits(second))


@pytest.mark.filterwarnings("ignore")
def test_adapters_add_their_delta_to_one_layer_of_a_store(make_toy):
    peft = pytest.importorskip("peft", reason="needs the package peft")
    folder = make_toy()
    results = []
    for merge in (False, True):
        torch.manual_seed(5)
        model = load(folder, "fp8_per_channel", merge=merge, dtype="float32")
        config = peft.LoraConfig(r=4, target_modules=["k_proj", "up_proj"], init_lora_weights=False)
        results.append(logits(peft.get_peft_model(model, config)))
        every = peft.LoraConfig(r=4, target_modules="all-linear")
        adapted = peft.get_peft_model(load(folder, "fp8_per_channel", merge=merge), every)
        names = {
            name.rpartition(".lora_A")[0]
            for name, _ in adapted.named_parameters()
            if "lora_A" in name
        }
        results.append({name.rpartition(".")[2] for name in names})
    assert torch.equal(results[0], results[2])
    assert not torch.equal(results[0], logits(load(folder, "fp8_per_channel", dtype="float32")))
    assert results[1] == results[3]
