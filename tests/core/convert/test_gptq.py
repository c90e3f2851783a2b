"""What GPTQ files say of themselves, and what stands in their words."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

import plain_decoding
from quantdock.convert.conversion import plan_conversion
from quantdock.convert.goals import Integers
from quantdock.convert.gptq import GPTQ, GPTQ_V2
from quantdock.convert.rounding import round_weight
from quantdock.formats import parse_spec
from quantdock.schemes import LayerFacts, parse_scheme
from toy_llama import DOWN, LINEARS, OUT, UP, llama


def convert(plain, target, **options):
    folder = plan_conversion(plain, target, "gptq", **options).run().target
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    return block, load_file(folder / "model.safetensors")


def layer(tensors, prefix):
    names = ("qweight", "qzeros", "scales", "g_idx")
    return {name: tensors[f"{prefix}.{name}"] for name in names}


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "group"), [(4, 128), (4, -1), (2, 32), (3, 64), (8, 128)])
def test_words_hold_what_was_rounded(plain, tmp_path, bits, group, symmetric):
    options = Integers(bits=bits, group_size=group, symmetric=symmetric)
    block, tensors = convert(plain, tmp_path / "out", integers=options)
    kind = f"int{bits}" if symmetric else f"uint{bits}"
    spec = parse_spec(f"{kind}[1x{group if group > 0 else '*'}]" + ("" if symmetric else ":zero"))
    for prefix in LINEARS:
        stored = layer(tensors, prefix)
        expected = round_weight(llama()[f"{prefix}.weight"], spec, "float16").dequantize()
        decoded = plain_decoding.gptq(stored, bits, v2=not symmetric)
        assert torch.equal(decoded, expected)
        assert stored["scales"].dtype == torch.float16
        size = group if group > 0 else stored["g_idx"].numel()
        assert stored["g_idx"].tolist() == [i // size for i in range(stored["g_idx"].numel())]
    assert block == {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "sym": symmetric,
        "desc_act": False,
        "checkpoint_format": "gptq" if symmetric else "gptq_v2",
        "lm_head": False,
    }


def test_layers_that_stay_and_others_are_in_dynamic(plain, tmp_path):
    block, tensors = convert(
        plain, tmp_path / "out", ignore=["*.up_proj"], choices={"*.down_proj": "w8a16"}
    )
    assert block["dynamic"] == {
        r"-:model\.layers\.0\.mlp\.up_proj(\.|$)": {},
        r"+:model\.layers\.0\.mlp\.down_proj(\.|$)": {
            "bits": 8,
            "group_size": -1,
            "sym": True,
            "desc_act": False,
        },
    }
    assert f"{UP}.weight" in tensors
    assert tensors[f"{DOWN}.qweight"].shape == (512 // 4, 256)
    assert tensors[f"{OUT}.qweight"].shape == (256 // 8, 256)


def test_numbers_in_names_are_told_apart():
    layers = {f"layers.{n}.up": parse_scheme("int4[1x64]") for n in (10, 2)}
    config = GPTQ.reader.from_config(GPTQ.make_block(layers, ("layers.1.up", "layers.1.experts")))
    kinds = {
        name: config.scheme_for(LayerFacts(prefix=name)).kind
        for name in ("layers.1.up", "layers.10.up", "layers.1.experts.3.w1", "layers.1.expert")
    }
    assert list(kinds.values()) == ["unquantized", "quantized", "unquantized", "quantized"]


def test_zero_points_make_it_version_two():
    symmetric, other = parse_scheme("int4[1x64]"), parse_scheme("uint4[1x64]:zero")
    assert GPTQ.for_layers({"a": symmetric}) is GPTQ
    assert GPTQ.for_layers({"a": symmetric, "b": other}) is GPTQ_V2
    weight = round_weight(torch.randn(8, 64), symmetric.weight, "float16")
    for version, zero in ((GPTQ, 7), (GPTQ_V2, 8)):
        words = version.encode(symmetric, weight, "float16")["qzeros"]
        assert [int(words[0, 0]) >> 4 * i & 15 for i in range(8)] == [zero] * 8
