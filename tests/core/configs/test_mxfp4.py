"""mxfp4: experts as gpt-oss stores them, and experts at load; nothing else."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import quantdock
from model_outputs import logits
from quantdock.configs.mxfp4 import Mxfp4Config
from quantdock.errors import LoadError, NothingQuantizedError
from quantdock.layers import FusedMoE
from quantdock.schemes import LayerFacts, StoredTensor
from tests.toy_files import edit_tensors

MXFP4 = "fp4_e2m1[1x32]:e8m0:even"


@pytest.mark.parametrize("quantization", [None, "gpt_oss_mxfp4", "none"])
def test_a_gpt_oss_file_is_exact(shared, quantization):
    folder = shared / "models" / "gptoss-mxfp4-even"
    model = quantdock.load(folder, quantization, dtype="float32", device="cpu")
    golden = load_file(folder / "golden.safetensors")
    ids = golden["input_ids"].view(1, -1)
    expected = golden["logits_dequant"].view(1, ids.shape[1], -1)
    assert (logits(model, ids) - expected).abs().max() < 1e-4
    experts = model.model.layers[0].mlp.experts
    assert isinstance(experts, FusedMoE) is (quantization != "none")
    assert model.quantdock_plan.unused == ()


@pytest.mark.parametrize("bias", ["gate_up_proj_bias", "down_proj_bias"])
def test_a_missing_bias_of_experts_is_an_error(shared, tmp_path, bias):
    source, folder = shared / "models" / "gptoss-mxfp4-even", tmp_path / "broken"
    folder.mkdir()
    for file in ("config.json", "model.safetensors"):
        (folder / file).write_bytes((source / file).read_bytes())
    edit_tensors(folder, lambda t: t.pop(f"model.layers.0.mlp.experts.{bias}"))
    message = rf"in no file[\s\S]*layers\.0\.mlp\.experts\.{bias}"
    with pytest.raises(LoadError, match=message):
        quantdock.load(folder, device="cpu")
    model = quantdock.load(source, device="cpu")
    ids = torch.arange(3, 30)[None]
    before = logits(model, ids)
    with pytest.raises(LoadError, match=message):
        quantdock.reload(model, folder)
    assert torch.equal(logits(model, ids), before)


def test_a_file_quantizes_its_experts_alone(shared):
    plan = quantdock.explain(shared / "models" / "gptoss-mxfp4-even", platform="cpu")
    schemes = {layer.kind: layer.scheme for layer in plan.layers}
    assert schemes == {"linear": None, "experts": MXFP4, "embedding": None, "head": None}
    linear = next(layer for layer in plan.layers if layer.kind == "linear")
    assert linear.because == (
        "mxfp4 stands for experts here; a linear layer stays in the dtype of the model"
    )


def test_blocks_show_the_shape_of_the_weight():
    config = Mxfp4Config.from_config({"quant_method": "mxfp4"})
    stored = {
        "weight_blocks": StoredTensor(dtype="uint8", shape=(4, 64, 3, 16)),
        "weight_scales": StoredTensor(dtype="uint8", shape=(4, 64, 3)),
    }
    facts = LayerFacts(prefix="mlp.experts.gate_up_proj", kind="experts", stored=stored)
    decision = config.scheme_for(facts)
    assert str(decision.scheme) == MXFP4
    assert config.weight_shape(decision.scheme, facts) == (4, 64, 96)


def test_a_model_without_experts_has_nothing_to_quantize(shared):
    with pytest.raises(NothingQuantizedError, match="mxfp4 stands for experts here"):
        quantdock.load(shared / "models" / "bases" / "stories260k-d128", "mxfp4", device="cpu")


@pytest.mark.parametrize(
    ("method", "kinds"),
    [
        ("mxfp4", {"experts"}),
        ("mxfp4_online", {"linear", "experts"}),
        ("nvfp4_online", {"linear", "experts"}),
    ],
)
def test_a_16_bit_mixture_at_load(shared, method, kinds):
    folder = shared / "models" / "bases" / "stories260k-mixtral-d128"
    plain = quantdock.load(folder, "none", device="cpu")
    model = quantdock.load(folder, method, device="cpu")
    assert {la.kind for la in model.quantdock_plan.layers if la.scheme} == kinds
    ids = load_file(shared / "models" / "ct-mxfp4" / "golden.safetensors")["input_ids"].view(1, -1)
    found, expected = logits(model, ids).log_softmax(-1), logits(plain, ids).log_softmax(-1)
    divergence = (expected.exp() * (expected - found)).sum(-1).mean()
    assert 0 < divergence < 0.25  # other tools' fp4 of this model: 0.02 to 0.1


def test_gpt_oss_in_16_bits_becomes_what_its_tool_wrote(shared):
    """Its weights are [K, N], gate and up interleaved, with biases: read as if stored [N, K]."""
    models = shared / "models"
    made = quantdock.load(models / "bases" / "gptoss-random", "mxfp4", device="cpu")
    stored = quantdock.load(models / "gptoss-mxfp4-even", device="cpu")
    for layer, other in zip(made.model.layers, stored.model.layers, strict=True):
        ours, theirs = dict(layer.mlp.experts.named_parameters()), other.mlp.experts
        assert isinstance(theirs, FusedMoE) and "w13_weight" in ours
        for name, tensor in theirs.named_parameters():
            assert torch.equal(ours[name].view(torch.uint8), tensor.view(torch.uint8)), name
    assert made.quantdock_plan.unused == ()


@pytest.mark.parametrize("method", ["fp8_per_channel", "mxfp4_online", "nvfp4_online"])
def test_gpt_oss_is_quantized_at_load(shared, method):
    folder = shared / "models" / "bases" / "gptoss-random"
    plain = quantdock.load(folder, "none", device="cpu", dtype="float32")
    model = quantdock.load(folder, method, device="cpu", dtype="float32")
    experts, own = model.model.layers[0].mlp.experts, plain.model.layers[0].mlp.experts
    for expert in range(len(experts.experts)):
        w13, w2 = experts.quant_method.restore(experts, expert)
        for weight, real in ((w13, own.gate_up_proj[expert].T), (w2, own.down_proj[expert].T)):
            assert (weight.dequantize() - real).norm() < 0.15 * real.norm()


@pytest.mark.parametrize("shape", [(-1,), ()])
def test_blocks_that_are_no_matrix_are_told(shared, tmp_path, shape):
    source, folder = shared / "models" / "gptoss-mxfp4-even", tmp_path / "flat"
    folder.mkdir()
    for file in ("config.json", "model.safetensors"):
        (folder / file).write_bytes((source / file).read_bytes())
    blocks = "model.layers.0.mlp.experts.down_proj_blocks"

    def flatten(tensors):
        flat = tensors[blocks].flatten()
        tensors[blocks] = (flat if shape else flat[:1]).reshape(shape).clone()

    edit_tensors(folder, flatten)
    plan = quantdock.explain(folder, platform="cpu")
    assert any("down_proj_blocks is [" in w and "not a matrix" in w for w in plan.warnings)
