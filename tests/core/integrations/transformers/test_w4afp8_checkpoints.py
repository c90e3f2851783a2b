"""A mixture in W4AFP8 as its tools store it: written here by plain formulas, loaded, and run."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import quantdock
from model_outputs import IDS, logits
from quantdock.cli.app import run as run_cli
from quantdock.errors import LoadError
from quantdock.layers import FusedMoE
from tests.toy_files import edit_config, edit_tensors
from tests.toy_fp4 import DEEPSEEK, fp8_blocks, is_expert, is_linear, rewrite
from toy_ranks import in_threads, relative

WIDE = {**DEEPSEEK, "moe_intermediate_size": 256}
NUMBERS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
STEM = "model.layers.1.mlp.experts"


def int4(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Return a weight in groups of 128 codes from -8 to 7, two a byte, the even one low."""
    n, k = weight.shape
    groups = weight.float().view(n, k // 128, 128)
    scale = groups.abs().amax(-1) / 7
    codes = (groups / scale[..., None]).round().clamp(-8, 7)
    whole = codes.view(n, k).to(torch.int8)
    packed = (whole[:, 1::2] << 4) | (whole[:, 0::2] & 0x0F)
    tensors = {"weight": packed, "weight_scale_inv": scale}
    return tensors, (codes * scale[..., None]).view(n, k)


@pytest.fixture
def folders(make_toy, tmp_path):
    """Return a W4AFP8 folder and a plain one of the same weights."""
    folder = make_toy("deepseek_v3", **WIDE)
    plain = rewrite(
        folder, {}, lambda n: int4 if is_expert(n) else fp8_blocks if is_linear(n) else None
    )

    def calibrate(tensors: dict[str, Tensor]) -> None:
        """The scale of an input has a name of its own, as tools write it."""
        for name in [n for n in tensors if is_expert(n) and n.endswith(".weight")]:
            expert, role = name.split(".")[-3:-1]
            scale = torch.tensor([0.01 + 0.001 * int(expert)], dtype=torch.bfloat16)
            tensors[
                f"{name.split('.experts.')[0]}.experts.{expert}.{NUMBERS[role]}.input_scale"
            ] = scale

    edit_tensors(folder, calibrate)
    edit_config(folder, quantization_config={"quant_method": "w4afp8"})
    return folder, plain


def load(folder, quantization=None, **options):
    return quantdock.load(folder, quantization, device="cpu", dtype="float32", **options)


def test_the_weights_are_those_that_were_written(folders):
    folder, plain = folders
    expected = logits(load(plain, "none"))
    assert (logits(load(folder, "none")) - expected).abs().max() < 1e-4
    model = load(folder)
    assert isinstance(model.model.layers[1].mlp.experts, FusedMoE)
    assert 0 < relative(logits(model), expected) < 0.5  # inputs are in fp8
    plan = model.quantdock_plan
    assert plan.method == "w4afp8" and plan.unused == () and plan.totals.errors == 0
    schemes = {layer.kind: layer.scheme for layer in plan.layers if layer.scheme}
    assert schemes["experts"] == "int4[1x128] x fp8_e4m3[*x*]"
    assert schemes["linear"] == "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"
    assert model.generate(IDS[:, :6], max_new_tokens=4, do_sample=False).shape == (1, 10)


def test_an_expert_computes_what_the_formula_says(folders):
    folder, plain = folders
    real, stored = (load_file(f / "model.safetensors") for f in (plain, folder))
    experts = load(folder).model.layers[1].mlp.experts
    x = torch.randn(5, real[f"{STEM}.3.gate_proj.weight"].shape[1]) * 2

    def linear(h: Tensor, role: str) -> Tensor:
        scale = stored[f"{STEM}.3.{NUMBERS[role]}.input_scale"].float()
        rounded = (h / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
        return rounded @ real[f"{STEM}.3.{role}.weight"].float().T

    hidden = torch.nn.functional.silu(linear(x, "gate_proj")) * linear(x, "up_proj")
    expected = linear(hidden, "down_proj")
    ids = torch.full((5, 1), 3)
    found = experts.quant_method.apply(experts, x, torch.ones(5, 1), ids)
    assert relative(found, expected) < 1e-5


def test_a_folder_of_modelopts_words_needs_no_name(folders):
    folder, _ = folders
    expected = logits(load(folder))
    edit_config(folder, quantization_config=None)
    block = {"quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None}}
    (folder / "hf_quant_config.json").write_text(json.dumps(block))
    model = load(folder)
    assert model.quantdock_plan.method == "w4afp8"
    assert "no layer is named" in model.quantdock_plan.method_source
    assert torch.equal(logits(model), expected)


def test_every_command_takes_it_and_names_a_lost_scale(folders, capsys):
    folder, _ = folders
    assert run_cli(["explain", str(folder)]) == 0
    assert "int4[1x128]" in capsys.readouterr().out
    status = run_cli(["doctor", str(folder)])
    told = capsys.readouterr().out
    assert status == 0, told
    edit_tensors(folder, lambda tensors: tensors.pop(f"{STEM}.5.w3.input_scale") and None)
    with pytest.raises(LoadError, match=r"experts\.5\.up_proj\.input_scale"):
        load(folder)
    assert run_cli(["doctor", str(folder)]) == 1


def test_it_loads_again_and_on_two_ranks(folders):
    folder, _ = folders
    model = load(folder)
    before = logits(model)
    for parameter in model.model.layers[1].mlp.experts.parameters():
        parameter.data.view(torch.uint8).zero_()
    quantdock.reload(model, folder)
    assert torch.equal(logits(model), before)
    found = in_threads(2, lambda group: logits(load(folder, tp=group)))
    assert relative(found[0], before) < 1e-5


def test_it_is_decoded_to_16_bits_on_disk(folders, tmp_path):
    folder, plain = folders
    target = quantdock.convert_checkpoint(folder, tmp_path / "decoded", "none").target
    assert relative(logits(load(target)), logits(load(plain))) < 1e-2
    names = load_file(target / "model.safetensors")
    assert not [name for name in names if "scale" in name]
