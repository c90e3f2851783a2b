"""What compressed-tensors files say of integers, and what stands in their words."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

import plain_decoding
from quantdock.convert.compressed import COMPRESSED
from quantdock.convert.conversion import plan_conversion
from quantdock.convert.goals import Integers
from quantdock.convert.rounding import round_weight
from quantdock.formats import parse_spec
from quantdock.schemes import parse_scheme
from toy_llama import LINEARS, llama


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "group"), [(4, 128), (3, 32), (5, 64), (8, -1)])
def test_words_hold_what_was_rounded(plain, tmp_path, bits, group, symmetric):
    options = Integers(bits=bits, group_size=group, symmetric=symmetric)
    folder = (
        plan_conversion(plain, tmp_path / "out", "compressed-tensors", integers=options)
        .run()
        .target
    )
    tensors = load_file(folder / "model.safetensors")
    kind = f"int{bits}" if symmetric else f"uint{bits}"
    spec = parse_spec(f"{kind}[1x{group if group > 0 else '*'}]" + ("" if symmetric else ":zero"))
    for prefix in LINEARS:
        stored = {
            name.rpartition(".")[2]: tensor
            for name, tensor in tensors.items()
            if name.rpartition(".")[0] == prefix
        }
        weight = llama()[f"{prefix}.weight"]
        expected = round_weight(weight, spec, "bfloat16").dequantize()
        size = group if group > 0 else weight.shape[1]
        assert torch.equal(plain_decoding.compressed_tensors(stored, bits, size), expected)
        assert stored["weight_scale"].dtype == torch.bfloat16


def test_the_block_is_in_the_librarys_words(plain, tmp_path):
    folder = (
        plan_conversion(plain, tmp_path / "out", "w4a16", choices={"*.o_proj": "w8a8"}).run().target
    )
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert (block["format"], block["ignore"]) == ("mixed-precision", ["lm_head"])
    named, usual = block["config_groups"].values()
    assert (named["format"], usual["format"]) == ("int-quantized", "pack-quantized")
    assert usual["input_activations"] is None and usual["targets"] == ["Linear"]
    assert usual["weights"] == {
        "num_bits": 4,
        "type": "int",
        "strategy": "group",
        "symmetric": True,
        "dynamic": False,
        "group_size": 128,
    }
    assert named["input_activations"] == {
        "num_bits": 8,
        "type": "int",
        "strategy": "token",
        "symmetric": True,
        "dynamic": True,
    }


@pytest.mark.parametrize(
    "text",
    [
        "int4[1x128]",
        "uint4[1x64]:zero",
        "int8[1x*]",
        "int8[1x*] x int8[1x*]:dynamic",
        "int8[1x*] x int8[1x*]:zero:dynamic",
        "int8[*x*] x int8[*x*]",
    ],
)
def test_the_library_takes_the_block(text):
    quantization = pytest.importorskip("compressed_tensors.quantization")
    block = COMPRESSED.make_block({"a.b": parse_scheme(text)}, ("lm_head",))
    config = quantization.QuantizationConfig.model_validate(block)
    (scheme,) = config.config_groups.values()
    assert scheme.weights.num_bits == block["config_groups"]["group_0"]["weights"]["num_bits"]
    assert scheme.weights.symmetric is (":zero" not in text.split(" x ")[0])


def test_the_library_refuses_act_order_as_the_warning_says():
    quantization = pytest.importorskip("compressed_tensors.quantization")
    layers = {"a.b": parse_scheme("uint4[1x64]:zero:act-order")}
    (warning,) = COMPRESSED.cautions(layers)
    assert warning.startswith("1 layer is in act-order, such as a.b")
    with pytest.raises(ValueError, match="actorder='group' has been removed"):
        quantization.QuantizationConfig.model_validate(COMPRESSED.make_block(layers, ()))
