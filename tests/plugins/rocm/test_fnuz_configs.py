"""fp8 on gfx94x: schemes say e4m3fnuz, files stay e4m3fn, and no value changes."""

from __future__ import annotations

import pytest
import torch

from quantdock.errors import FormatError
from quantdock.numerics import from_fnuz
from quantdock.registry import dispatch_for, get_quantization_config, resolve_method
from quantdock.schemes import LayerFacts, StoredTensor
from quantdock.testing import use_plugins
from quantdock_rocm.fnuz import as_executed, as_stored, convert_weight
from quantdock_rocm.plugin import FNUZ_CONFIGS

FACTS = LayerFacts(prefix="model.layers.0.mlp.up_proj")
CODES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(8, 32)
ARGS = {"num_bits": 8, "type": "float"}
GROUPS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"all": {"targets": ["Linear"], "weights": {**ARGS, "strategy": "channel"}}},
}
ONLINE = ("fp8", "fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8")


@pytest.fixture(autouse=True)
def rocm():
    with use_plugins("quantdock_rocm.plugin"):
        yield


def config_of(name, arch):
    return resolve_method(name, f"rocm:{arch}").config


def pair(name, block=None):
    """Return the config of ``name`` as gfx942 means it, and as the core does."""
    configs = []
    for arch in ("gfx942", "gfx950"):
        kind = config_of(name, arch)
        config = kind.online() if block is None else kind.from_config(block)
        configs.append(config.bind(dispatch_for(f"rocm:{arch}")))
    return configs


def decoded(config, stored, facts=FACTS):
    return config.decode(config.scheme_for(facts).scheme, [stored], facts)


@pytest.mark.parametrize("name", FNUZ_CONFIGS)
def test_the_family_is_rebound_where_the_device_is_fnuz_only(name):
    for arch in ("gfx940", "gfx941", "gfx942"):
        assert resolve_method(name, f"rocm:{arch}").distribution == "quantdock-rocm"
    for arch in ("gfx90a", "gfx950", "gfx1100", "gfx1200", "gfx1201"):
        found = resolve_method(name, f"rocm:{arch}")
        assert found.distribution == "quantdock"
        assert issubclass(config_of(name, "gfx942"), found.config)
        assert config_of(name, "gfx942").get_name() == found.config.get_name() == name


def test_other_methods_are_the_core_s():
    assert resolve_method("none", "rocm:gfx942").distribution == "quantdock"


@pytest.mark.parametrize("name", ONLINE)
def test_schemes_are_the_core_s_in_fnuz(name):
    fnuz, core = (config.scheme_for(FACTS).scheme for config in pair(name))
    assert fnuz == as_executed(core)
    assert as_stored(fnuz) == core
    assert (fnuz.weight.element, fnuz.activation.element) == ("fp8_e4m3fnuz", "fp8_e4m3fnuz")


def test_what_the_method_promises_is_inherited():
    promised = {
        name: config_of(name, "gfx942").online().scheme_for(FACTS).promised for name in ONLINE
    }
    assert [name for name in ONLINE if promised[name]] == ["fp8_per_channel"]


def test_files_stay_as_they_are():
    block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    fnuz, core = pair("fp8", block)
    found = fnuz.slots(fnuz.scheme_for(FACTS).scheme, 256, 384, FACTS)
    assert found == core.slots(core.scheme_for(FACTS).scheme, 256, 384, FACTS)
    assert found[0].dtypes[0] == "float8_e4m3fn"


@pytest.mark.parametrize(
    ("block", "scale"),
    [
        ({"quant_method": "fp8"}, torch.tensor(0.37)),
        ({"quant_method": "fp8", "weight_block_size": [4, 8]}, torch.rand(2, 4) + 0.1),
        ({"quant_method": "mxfp8"}, torch.full((8, 1), 121, dtype=torch.uint8)),
        ({"quant_method": "w8a8_fp8"}, torch.rand(8, 1) + 0.1),
        ({"quant_method": "fbgemm_fp8"}, torch.rand(8, 1) + 0.1),
        (GROUPS, torch.rand(8, 1) + 0.1),
    ],
    ids=["tensor", "block", "mx", "channel", "fbgemm", "groups"],
)
def test_all_256_codes_keep_their_value(block, scale):
    fnuz, core = pair(block["quant_method"], block)
    scheme = core.scheme_for(FACTS).scheme
    names = [slot.name for slot in core.slots(scheme, 8, 32, FACTS)]
    stored = {names[0]: CODES, names[1]: scale}
    found, meant = decoded(fnuz, stored), decoded(core, stored)
    assert found.segments[0].codes.dtype == torch.float8_e4m3fnuz
    assert found.segments[0].spec.element == "fp8_e4m3fnuz"
    torch.testing.assert_close(
        found.dequantize(), meant.dequantize(), rtol=0, atol=0, equal_nan=True
    )
    assert int(found.dequantize().isnan().sum()) == 2


MIXED = {
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {
        FACTS.prefix: {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
        "model.layers.0.mlp.down_proj": {"quant_algo": "NVFP4"},
    },
}
_FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_channel"}
_ROUND = {"bits": 8, "group_size": -1, "data_type": "fp8", "sym": True, "act_bits": 16}


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("modelopt", {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}),
        ("modelopt_mixed", MIXED),
        ("quark", {"global_quant_config": {"weight": _FP8}}),
        ("auto-round", _ROUND),
        ("deepseek_v4_fp8", {"quant_method": "fp8"}),
    ],
)
def test_readers_of_other_dialects_keep_values_too(name, block):
    fnuz, core = pair(name, block)
    stored = {"weight": CODES, "weight_scale": torch.rand(8) + 0.1}
    headers = {
        part: StoredTensor(dtype=str(t.dtype).removeprefix("torch."), shape=tuple(t.shape))
        for part, t in stored.items()
    }
    facts = LayerFacts(prefix=FACTS.prefix, stored=headers)
    found, meant = decoded(fnuz, stored, facts), decoded(core, stored, facts)
    assert found.segments[0].spec.element == "fp8_e4m3fnuz"
    torch.testing.assert_close(
        found.dequantize(), meant.dequantize(), rtol=0, atol=0, equal_nan=True
    )


def test_fp4_beside_fp8_is_not_touched():
    fnuz, core = pair("modelopt_mixed", MIXED)
    down = LayerFacts(prefix="model.layers.0.mlp.down_proj")
    assert fnuz.scheme_for(down).scheme == core.scheme_for(down).scheme


def test_it_happens_once_and_can_be_undone():
    fnuz, core = pair("fp8", {"quant_method": "fp8"})
    stored = {"weight": CODES, "weight_scale": torch.tensor(0.5)}
    found = decoded(fnuz, stored)
    with pytest.raises(FormatError, match=r"not torch\.float8_e4m3fn"):
        convert_weight(found, fnuz.scheme_for(FACTS).scheme)
    segment, meant = found.segments[0], decoded(core, stored).segments[0]
    codes, scale = from_fnuz(segment.codes, segment.scale)
    assert torch.equal(scale, meant.scale)
    changed = codes.view(torch.uint8) != meant.codes.view(torch.uint8)
    assert meant.codes.view(torch.uint8)[changed].tolist() == [0x80, 0xFF]
    assert codes.view(torch.uint8)[changed].tolist() == [0x00, 0x7F]


@pytest.mark.parametrize(
    ("inputs", "element", "factor"), [("int", "int8", 1), ("float", "fp8_e4m3fnuz", 2)]
)
def test_integers_stay_as_they_are_whatever_their_inputs(inputs, element, factor):
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16}
    static = {"num_bits": 8, "type": inputs, "strategy": "tensor"}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": static}
    block = {"quant_method": "compressed-tensors", "config_groups": {"g": group}}
    fnuz, core = pair("compressed-tensors", {**block, "format": "int-quantized"})
    codes = torch.randint(-8, 8, (8, 32), dtype=torch.int8)
    scales = {"weight_scale": torch.rand(8, 2), "input_scale": torch.tensor([0.03])}
    found, meant = (decoded(c, {"weight": codes, **scales}) for c in (fnuz, core))
    assert torch.equal(found.segments[0].codes, codes)
    assert torch.equal(found.dequantize(), meant.dequantize())
    assert torch.equal(found.input_scale, factor * meant.input_scale)
    assert fnuz.scheme_for(FACTS).scheme.activation.element == element


def test_static_input_scales_double():
    headers = {
        "weight": StoredTensor(dtype="float8_e4m3fn", shape=(8, 32)),
        "weight_scale": StoredTensor(dtype="float32", shape=()),
        "input_scale": StoredTensor(dtype="float32", shape=()),
    }
    facts = LayerFacts(prefix=FACTS.prefix, stored=headers)
    fnuz, core = pair("fp8", {"quant_method": "fp8", "activation_scheme": "static"})
    stored = {
        "weight": CODES,
        "weight_scale": torch.tensor(0.5),
        "input_scale": torch.tensor(0.03),
    }
    assert torch.equal(
        decoded(fnuz, stored, facts).input_scale, 2 * decoded(core, stored, facts).input_scale
    )


@pytest.mark.parametrize("name", ONLINE)
def test_quantizing_at_load_gives_the_values_of_every_other_device(name):
    fnuz, core = pair(name)
    weight = torch.randn(96, 160, generator=torch.Generator().manual_seed(1))
    weight[3] = 0.0
    found = decoded(fnuz, {"weight": weight})
    assert found.segments[0].codes.dtype == torch.float8_e4m3fnuz
    assert torch.equal(found.dequantize(), decoded(core, {"weight": weight}).dequantize() + 0.0)
    largest = found.segments[0].codes.float().abs().max()
    assert largest <= 224.0


def test_devices_without_fp8_units_run_weight_only():
    from quantdock.schemes import parse_scheme

    scheme = parse_scheme("fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic")
    for arch, applies in (("gfx90a", True), ("gfx1150", True), ("gfx950", False)):
        dispatch = dispatch_for(f"rocm:{arch}")
        (row,) = dispatch.substitutions
        assert row.applies(scheme, dispatch.platform) is applies


def test_kv_scales_double_with_the_encoding():
    block = {"quant_method": "fp8", "kv_cache_quant_algo": "FP8"}
    stored = torch.tensor(0.02)
    here = get_quantization_config("fp8", "rocm:gfx942").from_config(block)
    elsewhere = get_quantization_config("fp8", "rocm:gfx950").from_config(block)
    assert torch.equal(here.decode_kv_scale(stored), stored * 2)
    assert torch.equal(elsewhere.decode_kv_scale(stored.bfloat16()), stored.bfloat16().float())
