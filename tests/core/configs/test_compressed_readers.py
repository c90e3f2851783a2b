"""Small floats of compressed-tensors: its own vectors bit for bit, and headers that are wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import third_party
from packed_layers import PREFIX, facts_of
from quantdock.configs.compressed_tensors import CompressedTensorsConfig
from quantdock.formats import parse_spec
from quantdock.numerics import pack_bytes, quantize_weight
from quantdock.numerics.canonical import CanonicalWeight
from quantdock.schemes import LayerFacts, Scheme
from third_party import headers

NVFP4, NVFP4_INPUT = "fp4_e2m1[1x16]:e4m3:second[*x*]", "fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]"
MXFP4, MXFP6, MXFP8 = (
    "fp4_e2m1[1x32]:e8m0:even",
    "fp6_e2m3[1x32]:e8m0:even",
    "fp8_e4m3[1x32]:e8m0:ceil",
)
VECTORS = {
    "ct-nvfp4/nvfp4_f32": f"{NVFP4} x {NVFP4_INPUT}",
    "ct-nvfp4/nvfp4a16_bf16": NVFP4,
    "ct-nvfp4/nvfp4a16_f32": NVFP4,
    "ct-mxfp4/mxfp4_f32": f"{MXFP4} x {MXFP4}:dynamic",
    "ct-mxfp4/mxfp4a16_bf16": MXFP4,
    "ct-mxfp4/mxfp4a16_f32": MXFP4,
    "ct-mxfp6/mxfp6a16_bf16": MXFP6,
    "ct-mxfp8/mxfp8_bf16": f"{MXFP8} x {MXFP8}:dynamic",
    "ct-mxfp8/mxfp8_f32": f"{MXFP8} x {MXFP8}:dynamic",
    "ct-mxfp8/mxfp8a16_f32": MXFP8,
}


def config(preset: str = "NVFP4A16", **fields: Any) -> CompressedTensorsConfig:
    return CompressedTensorsConfig.from_config({"config_groups": {preset: ["Linear"]}, **fields})


def decode(made: CompressedTensorsConfig, tensors: dict[str, Tensor]) -> CanonicalWeight:
    facts = facts_of(tensors)
    decision = made.scheme_for(facts)
    assert decision.scheme is not None, decision.because
    return third_party.decode(made, decision.scheme, tensors, facts)


def stored(vector: dict[str, Tensor], *, is_nv: bool) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint in a golden vector, in the dtypes that files have."""
    tensors = {n.removeprefix("ckpt."): t for n, t in vector.items() if n.startswith("ckpt.")}
    if is_nv:
        tensors["weight_scale"] = tensors["weight_scale"].view(torch.float8_e4m3fn)
    if "weight" in tensors:
        tensors["weight"] = tensors["weight"].view(torch.float8_e4m3fn)
    return tensors


@pytest.mark.parametrize(("name", "scheme"), VECTORS.items())
def test_weights_are_those_of_the_library(shared: Path, name: str, scheme: str) -> None:
    """It computes them in bf16, whatever the checkpoint was."""
    params = {row["id"]: row for row in _vectors(shared)}[name]["params"]
    group = {k: params[k] for k in ("weights", "input_activations", "format")}
    made = CompressedTensorsConfig.from_config(
        {"config_groups": {"group_0": {"targets": ["Linear"], **group}}}
    )
    vector = load_file(shared / "golden" / f"{name}.safetensors")
    tensors = stored(vector, is_nv="nvfp4" in name)
    if "local" in str(group["input_activations"]):
        tensors["input_global_scale"] = torch.tensor([64.0])
    weight = decode(made, tensors)
    assert str(made.scheme_for(facts_of(tensors)).scheme) == scheme
    assert torch.equal(weight.dequantize(torch.bfloat16), vector["dequant"])
    if weight.input_scale is not None:
        assert weight.input_scale.tolist() == [1 / 64]


def _vectors(shared: Path) -> list[dict[str, Any]]:
    rows = json.loads((shared / "golden" / "manifest.json").read_text())
    return rows if isinstance(rows, list) else next(v for v in rows.values() if _is_rows(v))


def _is_rows(value: object) -> bool:
    return isinstance(value, list) and bool(value) and "id" in value[0]


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("ct-nvfp4/nvfp4a16_bf16", "NVFP4A16"),
        ("ct-mxfp4/mxfp4a16_bf16", "MXFP4A16"),
        ("ct-mxfp6/mxfp6a16_bf16", "MXFP6A16"),
        ("ct-mxfp8/mxfp8_bf16", "MXFP8"),
    ],
)
def test_presets_read_what_the_library_wrote(golden: Path, name: str, preset: str) -> None:
    vector = load_file(golden / f"{name}.safetensors")
    weight = decode(config(preset), stored(vector, is_nv="nvfp4" in name))
    assert torch.equal(weight.dequantize(torch.bfloat16), vector["dequant"])


@pytest.mark.parametrize("preset", ["NVFP4A16", "MXFP4A16", "MXFP6A16", "MXFP8A16"])
def test_every_shape_that_the_library_stores(preset: str) -> None:
    """It takes whole groups of columns alone, and any number of rows."""
    library = pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    scheme = preset_name_to_scheme(preset, ["Linear"])
    size = scheme.weights.group_size
    form = {"NV": "nvfp4-pack-quantized", "MX": f"mxfp{preset[4]}-pack-quantized"}[preset[:2]]
    form = "mxfp8-quantized" if preset == "MXFP8A16" else form
    compressor = BaseCompressor.get_value_from_registry(form)
    for n, k in ((1, size), (3, 2 * size), (5, 3 * size), (33, 7 * size), (2, 40 * size)):
        real = torch.randn(n, k, generator=torch.Generator().manual_seed(n))
        lead = None
        if preset.startswith("NV"):
            lead = generate_gparam(real.amin().reshape(1), real.amax().reshape(1))
        parts = real.unflatten(-1, (k // size, size))
        scale, _ = calculate_qparams(
            parts.amin(-1), parts.amax(-1), scheme.weights, global_scale=lead
        )
        given = {"weight": real, "weight_scale": scale, "weight_global_scale": lead}
        given = {name: tensor for name, tensor in given.items() if tensor is not None}
        tensors = dict(compressor.compress(given, scheme))
        weight = decode(config(preset), tensors)
        theirs = compressor.decompress(dict(tensors), scheme)["weight"]
        assert weight.shape == (n, k)
        assert torch.equal(weight.dequantize(theirs.dtype), theirs), (library.__version__, n, k)


def layer(seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """Return an NVFP4 layer [48, 64] as files have it, and its real weight."""
    real = torch.randn(48, 64, generator=torch.Generator().manual_seed(seed))
    (segment,) = quantize_weight(real, parse_spec(NVFP4)).segments
    assert segment.second_scale is not None
    divisor = segment.second_scale.reciprocal()
    tensors = {
        "weight_packed": pack_bytes(segment.codes, bits=4),
        "weight_scale": segment.scale.to(torch.float8_e4m3fn),
        "weight_global_scale": divisor.reshape(1),
    }
    return tensors, replace(segment, second_scale=divisor.reciprocal()).dequantize()


def test_fused_shards_keep_their_global_scales() -> None:
    made, parts = config(), [layer(seed=seed) for seed in range(3)]
    parts[1][0]["weight_global_scale"] *= 3
    prefixes = tuple(f"model.layers.0.self_attn.{p}_proj" for p in "qkv")
    names = {
        f"{p}_proj.{n}": t for p, (ts, _) in zip("qkv", parts, strict=True) for n, t in ts.items()
    }
    facts = LayerFacts(
        prefix="model.layers.0.self_attn.qkv_proj", shards=prefixes, stored=headers(names)
    )
    scheme = made.scheme_for(facts).scheme
    assert str(scheme) == NVFP4 and isinstance(scheme, Scheme)
    weight = made.decode(scheme, [tensors for tensors, _ in parts], facts)
    apart = [decode(made, tensors).dequantize() for tensors, _ in parts]
    assert torch.equal(weight.dequantize(), torch.cat(apart))
    assert len({float(s.second_scale) for s in weight.segments}) == 3
    assert torch.equal(apart[0], parts[0][1])
    assert torch.allclose(apart[1] * 3, parts[1][1], rtol=1e-6, atol=0)


def test_an_infinite_divisor_is_no_scale_of_zero() -> None:
    tensors, _ = layer()
    for value, multiplier in ((torch.inf, "nan"), (0.0, "inf"), (torch.nan, "nan")):
        tensors["weight_global_scale"] = torch.tensor([value])
        (segment,) = decode(config(), tensors).segments
        assert str(float(segment.second_scale)) == multiplier


def test_weights_alone_ask_for_no_scale_of_the_input() -> None:
    tensors, real = layer()
    unused = {
        **tensors,
        "input_global_scale": torch.tensor([0.0]),
    }  # as where nothing calibrated it
    for given in (tensors, unused):
        weight = decode(config(), given)
        assert torch.equal(weight.dequantize(), real) and weight.input_scale is None
    made = config("NVFP4")
    scheme = made.scheme_for(facts_of(tensors)).scheme
    assert scheme is not None  # decoding to 16 bits asks for none either
    needed = [slot.name for slot in made.slots(scheme.weight_only(), 48, 64, facts_of(tensors))]
    assert needed == list(tensors)
    assert made.slots(scheme, 48, 64, facts_of(tensors))[-1].name == "input_global_scale"


@pytest.mark.parametrize("name", ["weight_scale", "weight_global_scale"])
def test_a_missing_tensor_of_the_weight_is_named(name: str) -> None:
    tensors, _ = layer()
    del tensors[name]
    decision = config().scheme_for(facts_of(tensors))
    assert decision.error
    beside = f"weight_packed {list(tensors['weight_packed'].shape)}"
    assert decision.because == f"{PREFIX}.{name} is missing, as {NVFP4} has beside {beside}"
    assert "download the file again" in decision.todo and "none" not in decision.todo


@pytest.mark.parametrize(
    ("preset", "change", "text"),
    [
        ("NVFP4A16", {"weight_scale": torch.ones(48, 4)}, "weight_scale is float32, not float8"),
        ("MXFP4A16", {}, "(K = 64), not of K = 128 as weight_scale [48, 4] in groups of 32"),
        (
            "NVFP4A16",
            {"weight_scale": torch.ones(48, 2).to(torch.float8_e4m3fn)},
            "weight_packed is [48, 32] (K = 64), not of K = 32 as weight_scale [48, 2]",
        ),
        (
            "NVFP4A16",
            {"weight_global_scale": torch.ones(2)},
            "weight_global_scale is [2], not [1]",
        ),
        (
            "MXFP6A16",
            {
                "weight_packed": torch.zeros(48, 32, dtype=torch.uint8),
                "weight_scale": torch.zeros(48, 2, dtype=torch.uint8),
            },
            "weight_packed is of 32 bytes a row, not of whole groups of 32 codes",
        ),
        (
            "NVFP4A16",
            {"weight_packed": torch.zeros(48, 32, dtype=torch.int32)},
            "is int32, not uint8",
        ),
    ],
)
def test_headers_that_contradict_the_block_are_an_error_with_numbers(
    preset: str, change: dict[str, Tensor], text: str
) -> None:
    tensors, _ = layer()
    if preset.startswith("MX"):
        tensors["weight_scale"] = tensors["weight_scale"].view(torch.uint8)
    if preset == "MXFP6A16":
        del tensors["weight_global_scale"]
    decision = config(preset).scheme_for(facts_of({**tensors, **change}))
    assert decision.error and text in decision.because and PREFIX in decision.because


def test_a_global_scale_that_nothing_takes_is_left_over() -> None:
    """Groups of MX, or of NV without a second level, have none; loading stops at it."""
    tensors, _ = layer()
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 16}
    made = CompressedTensorsConfig.from_config(
        {"config_groups": {"g": {"targets": ["Linear"], "weights": weights}}}
    )
    facts = facts_of(tensors)
    scheme = made.scheme_for(facts).scheme
    assert str(scheme) == "fp4_e2m1[1x16]:e4m3" and scheme is not None
    assert "weight_global_scale" not in [s.name for s in made.slots(scheme, 48, 64, facts)]
    del tensors["weight_global_scale"]
    (segment,) = decode(made, tensors).segments
    assert segment.second_scale is None


def test_the_kv_cache_of_such_files_is_read_as_everywhere() -> None:
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    assert str(config("NVFP4", kv_cache_scheme=scheme).kv_cache_spec()) == "fp8_e4m3[tensor]"
