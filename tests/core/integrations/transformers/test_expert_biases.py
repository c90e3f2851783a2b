"""Biases of experts, in every form in which files have them: the same logits, or an error."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import quantdock
from model_outputs import logits
from quantdock.errors import LoadError
from quantdock.layers import FusedMoE
from tests.toy_files import copy_checkpoint, edit_config, edit_tensors
from toy_ranks import in_threads, relative

STEM = "model.layers.{}.mlp.experts"
MX = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*router"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
        }
    },
}


def load(folder, quantization=None, **options):
    return quantdock.load(folder, quantization, device="cpu", **options)


def by_role(both: torch.Tensor, down: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the rows of gate, up and down of one expert; those of gate and up take turns."""
    return {"gate_proj": both[::2], "up_proj": both[1::2], "down_proj": down}


def store_apart(tensors: dict[str, torch.Tensor]) -> None:
    """Store each expert of gpt-oss by itself, with its biases, as tools do that quantize it."""
    for stem in map(STEM.format, range(2)):
        kept = {part: name for part, name in NAMES.items() if f"{stem}.down_proj{part}" in tensors}
        for part, name in kept.items():
            both, down = (tensors.pop(f"{stem}.{w}_proj{part}") for w in ("gate_up", "down"))
            if not part:  # 16-bit weights of the class are [K, N]
                both, down = both.transpose(1, 2), down.transpose(1, 2)
            for expert in range(len(both)):
                for role, rows in by_role(both[expert], down[expert]).items():
                    rows = rows.flatten(1) if part == "_blocks" else rows
                    tensors[f"{stem}.{expert}.{role}.{name}"] = rows.contiguous()


NAMES = {"_blocks": "weight_packed", "_scales": "weight_scale", "": "weight", "_bias": "bias"}


@pytest.fixture
def packed(shared, tmp_path):
    """Return a gpt-oss in MXFP4, stored expert by expert."""
    folder = copy_checkpoint(shared / "models" / "gptoss-mxfp4-even", tmp_path / "packed")
    edit_tensors(folder, store_apart)
    edit_config(folder, quantization_config=MX)
    return folder


@pytest.fixture
def plain(shared, tmp_path):
    """Return a gpt-oss in 16 bits, stored expert by expert."""
    folder = copy_checkpoint(shared / "models" / "bases" / "gptoss-random", tmp_path / "plain")
    edit_tensors(folder, store_apart)
    return folder


@pytest.mark.parametrize("quantization", [None, "none"])
def test_quantized_experts_and_their_biases_may_lie_apart(shared, packed, quantization):
    expected = logits(load(shared / "models" / "gptoss-mxfp4-even", quantization))
    model = load(packed, quantization)
    assert isinstance(model.model.layers[0].mlp.experts, FusedMoE) is (quantization is None)
    assert torch.equal(logits(model), expected)
    assert model.quantdock_plan.unused == ()


@pytest.mark.parametrize("quantization", [None, "mxfp4", "fp8_per_channel"])
def test_plain_experts_and_their_biases_may_lie_apart(shared, plain, quantization):
    expected = logits(load(shared / "models" / "bases" / "gptoss-random", quantization))
    model = load(plain, quantization)
    assert torch.equal(logits(model), expected)
    assert model.quantdock_plan.unused == ()


@pytest.mark.parametrize("is_quantized", [True, False])
def test_they_are_saved_and_loaded_again(packed, plain, tmp_path, is_quantized):
    folder = packed if is_quantized else plain
    model = load(folder, None if is_quantized else "fp8_per_channel")
    before = logits(model)
    for parameter in model.model.layers[1].mlp.experts.parameters():
        parameter.data.view(torch.uint8).zero_()
    quantdock.reload(model, folder)
    assert torch.equal(logits(model), before)
    model.save_pretrained(tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert f"{STEM.format(1)}.3.up_proj.bias" in saved
    assert torch.equal(logits(load(tmp_path / "saved")), before)


def test_two_ranks_have_the_logits_of_one(packed):
    found = in_threads(2, lambda group: logits(load(packed, dtype="float32", tp=group)))
    assert relative(found[0], logits(load(packed, dtype="float32"))) < 1e-5
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("quantization", [None, "none"])
def test_a_bias_that_one_expert_lacks_is_named(packed, quantization):
    name = f"{STEM.format(1)}.2.up_proj.bias"
    edit_tensors(packed, lambda tensors: tensors.pop(name))
    with pytest.raises(LoadError) as caught:
        load(packed, quantization)
    assert caught.value.names == (name,)


@pytest.mark.parametrize("quantization", [None, "none"])
@pytest.mark.parametrize("shape", [(64,), (4, 32), (1,)])
def test_a_bias_of_another_shape_is_named(packed, shape, quantization):
    name = f"{STEM.format(0)}.3.gate_proj.bias"
    edit_tensors(packed, lambda tensors: tensors.update({name: torch.ones(shape)}))
    with pytest.raises(LoadError) as caught:
        load(packed, quantization)
    assert caught.value.names == (name,)
    assert f"has shape {list(shape)}" in str(caught.value)


@pytest.mark.parametrize("shape", [(4, 255), (256,), (4, 4, 64)])
def test_a_stacked_bias_of_another_shape_is_named(shared, tmp_path, shape):
    folder = copy_checkpoint(shared / "models" / "gptoss-mxfp4-even", tmp_path / "packed")
    name = f"{STEM.format(1)}.gate_up_proj_bias"
    edit_tensors(folder, lambda tensors: tensors.update({name: torch.ones(shape)}))
    with pytest.raises(LoadError) as caught:
        load(folder)
    assert name in str(caught.value)


def test_doctor_sees_biases_that_lie_apart(packed):
    assert shape_findings(packed) == []
    lost = f"{STEM.format(1)}.2.up_proj.bias"
    edit_tensors(packed, lambda tensors: tensors.pop(lost))
    assert any(lost in finding.names for finding in shape_findings(packed))


def shape_findings(folder):
    outcomes = {outcome.name: outcome for outcome in quantdock.doctor(folder).outcomes}
    return [*outcomes["shapes"].findings]


@pytest.mark.parametrize("quantization", [None, "none"])
def test_gate_and_up_may_lie_apart_beside_one_bias_of_both(shared, tmp_path, quantization):
    source = shared / "models" / "gptoss-mxfp4-even"
    folder = copy_checkpoint(source, tmp_path / "toy")

    def divide(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if "gate_up_proj_" in n and not n.endswith("_bias")]:
            both = tensors.pop(name)
            tensors[name.replace("gate_up", "gate")] = both[:, ::2].contiguous()
            tensors[name.replace("gate_up", "up")] = both[:, 1::2].contiguous()

    edit_tensors(folder, divide)
    wide = {"quantization": quantization, "dtype": "float32"}
    model = load(folder, **wide)
    assert relative(logits(model), logits(load(source, **wide))) < 1e-6
    assert model.quantdock_plan.unused == ()
    assert quantdock.explain(folder, platform="cpu").totals.errors == 0

    def rank(group):
        return logits(load(folder, **wide, tp=group, expert_parallel=True))

    for found in in_threads(2, rank) if quantization is None else ():
        assert relative(found, logits(model)) < 1e-5
