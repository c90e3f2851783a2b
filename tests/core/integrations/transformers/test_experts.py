"""Mixtures of experts from other tools' files: the experts run quantized, expert by expert."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

import quantdock
from model_outputs import logits
from quantdock.errors import ConfigError, LoadError
from quantdock.layers import FusedMoE
from tests.toy_files import edit_tensors

# Mixtral under transformers' names and llm-compressor's, Qwen3-MoE with blocks of 64.
FP8 = ("fp8block-mixtral", "fp8block-qwen3moe-64x64", "ct-mixtral-fp8-dynamic")


@pytest.fixture
def weight_only(monkeypatch):
    """Let fp8 schemes keep activations as they are, so that only weights differ from 16 bits."""
    from quantdock.configs.compressed_tensors import CompressedTensorsConfig
    from quantdock.configs.fp8 import Fp8Config

    for config in (CompressedTensorsConfig, Fp8Config):
        monkeypatch.setattr(config, "executed", lambda self, scheme: scheme.weight_only())


@pytest.mark.parametrize("name", FP8)
def test_weights_are_exact(shared, weight_only, name):
    folder = shared / "models" / name
    golden = load_file(folder / "golden.safetensors")
    model = quantdock.load(folder, dtype="float32", device="cpu")
    assert isinstance(model.model.layers[0].mlp.experts, FusedMoE)
    ids = golden["input_ids"].view(1, -1)
    expected = golden["logits_dequant"].view(1, ids.shape[1], -1)
    assert (logits(model, ids) - expected).abs().max() < 2e-4
    assert model.quantdock_plan.unused == ()


@pytest.mark.parametrize("name", FP8)
def test_a_reload_equals_a_load_and_keeps_addresses(shared, name):
    folder = shared / "models" / name
    model = quantdock.load(folder, device="cpu")
    ids = torch.arange(3, 40)[None]
    before = logits(model, ids)
    experts = model.model.layers[0].mlp.experts
    addresses = {n: p.data_ptr() for n, p in experts.named_parameters()}
    for parameter in experts.parameters():
        parameter.data.view(torch.uint8).zero_()
    quantdock.reload(model, folder)
    assert torch.equal(logits(model, ids), before)
    assert {n: p.data_ptr() for n, p in experts.named_parameters()} == addresses


def test_experts_are_quantized_at_load(shared):
    folder = shared / "models" / "bases" / "stories260k-mixtral-d128"
    plain = quantdock.load(folder, "none", device="cpu")
    model = quantdock.load(folder, "fp8_per_channel", device="cpu")
    plan = [layer for layer in model.quantdock_plan.layers if layer.kind == "experts"]
    assert {layer.decision for layer in plan} == {"quantized"}
    ids = torch.arange(3, 67)[None]
    error = (logits(model, ids) - logits(plain, ids)).norm() / logits(plain, ids).norm()
    assert 0 < error < 0.2
    held = sum(layer.bytes_memory for layer in plan)
    assert held < 0.55 * sum(p.numel() * 2 for n, p in plain.named_parameters() if ".experts." in n)


def test_the_plan_has_a_row_for_w2_where_it_differs_from_w13(shared):
    folder = shared / "models" / "bases" / "stories260k-mixtral-d128"
    options = {"quantization": "int8_per_channel_weight_only", "platform": "cpu:avx2"}
    choices = {"*.w2": "fp8_per_block"}
    headers = quantdock.explain(folder, choices=choices, **options).layers
    model = quantdock.load(folder, choices=choices, **{**options, "platform": "cpu"})
    rows = [layer for layer in model.quantdock_plan.layers if layer.kind == "experts"]
    assert len(rows) == 2 * 5
    for row, last, sizes in zip(rows, ("w1", "w2"), ((512, 128), (128, 256)), strict=False):
        assert row.prefix == f"model.layers.0.block_sparse_moe.experts.0.{last}"
        like = next(layer for layer in headers if layer.prefix == row.prefix)
        assert (row.scheme, row.source) == (like.scheme, like.source)
        assert (row.copies, row.n, row.k) == (4, *sizes)
    assert any("plain torch" in warning for warning in rows[1].warnings)
    held = sum(p.numel() * p.element_size() for n, p in model.named_parameters() if "experts" in n)
    assert sum(row.bytes_memory for row in rows) == held
    whole = sum(layer.bytes_stored for layer in headers if layer.kind == "experts")
    assert sum(row.bytes_stored for row in rows) == whole


def test_stacked_experts_of_a_16_bit_file_are_quantized_at_load(make_toy, tmp_path):
    """The same weights, one by one and stacked as the model has them: the same bits."""
    folder = make_toy("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=128)
    ids = torch.arange(3, 20)[None]
    expected = logits(quantdock.load(folder, "fp8_per_channel", device="cpu"), ids)

    def stack(tensors: dict[str, torch.Tensor]) -> None:
        for layer in range(2):
            stem = f"model.layers.{layer}.mlp.experts"

            def one(expert: int, role: str, stem: str = stem) -> torch.Tensor:
                return tensors.pop(f"{stem}.{expert}.{role}_proj.weight")

            both = [torch.cat([one(e, "gate"), one(e, "up")]) for e in range(4)]
            tensors[f"{stem}.gate_up_proj"] = torch.stack(both)
            tensors[f"{stem}.down_proj"] = torch.stack([one(e, "down") for e in range(4)])

    edit_tensors(folder, stack)
    model = quantdock.load(folder, "fp8_per_channel", device="cpu")
    assert isinstance(model.model.layers[1].mlp.experts, FusedMoE)
    assert torch.equal(logits(model, ids), expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("w1.weight_scale_inv", r"w1\.weight has|w1\.weight_scale_inv|scale is missing"),
        ("w2.weight", r"expert 2: down|experts\.2\.w2\.weight"),
    ],
)
def test_a_missing_tensor_names_its_expert(shared, tmp_path, name, message):
    source = shared / "models" / "fp8block-mixtral"
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in ("config.json", "model.safetensors"):
        (folder / file).write_bytes((source / file).read_bytes())
    edit_tensors(folder, lambda t: t.pop(f"model.layers.1.block_sparse_moe.experts.2.{name}"))
    with pytest.raises((ConfigError, LoadError), match=message):
        quantdock.load(folder, device="cpu")


def test_experts_stored_in_two_ways_are_refused(shared, tmp_path):
    source = shared / "models" / "fp8block-mixtral"
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = load_file(source / "model.safetensors")
    stem = "model.layers.0.block_sparse_moe.experts.3"
    for weight in ("w1", "w2", "w3"):
        tensors[f"{stem}.{weight}.weight"] = tensors[f"{stem}.{weight}.weight"].to(torch.bfloat16)
        tensors.pop(f"{stem}.{weight}.weight_scale_inv")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ConfigError, match=r"experts of one layer differ[\s\S]*experts\.3\.w1 is plain"
    ):
        quantdock.load(tmp_path, device="cpu")


def test_the_plan_gives_experts_the_kernels_of_linear_layers(shared):
    plan = quantdock.explain(shared / "models" / "fp8block-mixtral", platform="cpu")
    experts = [layer for layer in plan.layers if layer.kind == "experts"]
    linear = [layer for layer in plan.layers if layer.kind == "linear" and layer.scheme]
    assert len(experts) == 5 * 4 * 3
    assert {layer.kernel for layer in experts} == {layer.kernel for layer in linear}
