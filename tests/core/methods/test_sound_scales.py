"""Scales that no quantizer means: which they are, and that nothing is computed with them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from quantdock import dispatch_for, get_quantization_config
from quantdock.errors import LoadError
from quantdock.formats import parse_spec
from quantdock.layers import LinearBase
from quantdock.methods.sound_scales import find_fault, may_be_negative, require_sound
from quantdock.numerics import CanonicalWeight, quantize_weight
from quantdock.schemes import LayerFacts

NAN, INF = torch.nan, torch.inf


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([[1.0, 2.0], [NAN, NAN]], "2 of 4 NaN, the first at [1, 0]"),
        ([[1.0, INF], [-INF, -1.0]], "2 of 4 infinite, the first at [0, 1]"),
        ([[1.0, 0.0], [-0.5, 3.0]], "1 of 4 negative, the first at [1, 0]"),
        ([[NAN, INF, -1.0]], "1 of 3 NaN, the first at [0, 0]"),
        ([-1.0], "1 of 1 negative"),
    ],
)
def test_the_first_kind_of_fault_is_counted_and_placed(values, text):
    assert str(find_fault(torch.tensor(values))) == text


def test_what_is_sound():
    for scale in (torch.tensor([0.0, -0.0, 1e-38, 3e38]), torch.empty(0, 4)):
        assert find_fault(scale) is None
    assert find_fault(torch.tensor([-1.0]), may_be_negative=True) is None
    assert find_fault(torch.tensor([-INF]), may_be_negative=True).kind == "infinite"


def test_what_is_divided_by_cannot_be_zero():
    scales = torch.tensor([0.5, 0.0, 0.0])
    assert find_fault(scales) is None
    assert str(find_fault(scales, is_divisor=True)) == "2 of 3 zero, the first at [1]"
    assert find_fault(torch.tensor([1e-38]), is_divisor=True) is None


def test_a_static_scale_of_an_input_that_is_zero_is_named():
    layer = layer_of({"activation_scheme": "static"})
    with pytest.raises(LoadError, match="scale of the input: 1 of 1 zero") as caught:
        fill(layer, torch.tensor(0.5), activation_scale=torch.tensor(0.0))
    assert caught.value.names == ("model.up_proj.activation_scale",)


def test_integers_may_have_negative_scales_and_floats_not():
    """AutoRound writes negative scales of symmetric integers by design."""
    assert may_be_negative(parse_spec("int8[1x128]"))
    assert not may_be_negative(parse_spec("fp8_e4m3[1x*]"))


def layer_of(block):
    config = get_quantization_config("fp8", "cpu").from_config({"quant_method": "fp8", **block})
    config.bind(dispatch_for("cpu"))
    return LinearBase(256, 384, False, quant_config=config, prefix="model.up_proj")


def fill(layer, scale, **others):
    pending = layer.quant_method.pending
    pending.add("weight", torch.zeros(384, 256, dtype=torch.float8_e4m3fn))
    for name, tensor in {"weight_scale": scale, **others}.items():
        pending.add(name, tensor)
    layer.quant_method.process_weights_after_loading(layer)


@pytest.mark.parametrize(("value", "kind"), [(NAN, "NaN"), (INF, "infinite"), (-2.0, "negative")])
def test_a_layer_names_the_tensor_as_its_file_spells_it(value, kind):
    layer = layer_of({"weight_block_size": [128, 128]})
    scale = torch.ones(3, 2)
    scale[2, 1] = value
    with pytest.raises(LoadError) as caught:
        fill(layer, scale)
    text = str(caught.value)
    assert "model.up_proj has scales" in text
    assert f"scales of the weight: 1 of 6 {kind}, the first at [2, 1]" in text
    assert "as stored in model.up_proj.weight_scale" in text
    assert caught.value.facts["names"] == ("model.up_proj.weight_scale",)


def test_a_static_input_scale_is_looked_at_too():
    layer = layer_of({"activation_scheme": "static"})
    with pytest.raises(LoadError, match=r"scale of the input: 1 of 1 NaN") as caught:
        fill(layer, torch.ones(()), input_scale=torch.tensor(NAN))
    assert caught.value.facts["names"] == ("model.up_proj.input_scale",)


def test_exponents_that_mean_nan_are_found_although_bytes_are_no_numbers():
    block = {"weight_block_size": [128, 128], "scale_fmt": "ue8m0"}
    layer = layer_of(block)
    scale = torch.full((3, 2), 127, dtype=torch.uint8)
    scale[1, 0] = 255
    with pytest.raises(LoadError, match=r"1 of 6 NaN, the first at \[1, 0\]") as caught:
        fill(layer, scale.view(torch.float8_e8m0fnu))
    assert caught.value.facts["names"] == ("model.up_proj.weight_scale",)


def test_a_failed_load_leaves_the_weights_that_were_there():
    layer = layer_of({})
    fill(layer, torch.tensor(0.5))
    address = layer.weight.data_ptr()
    with pytest.raises(LoadError):
        fill(layer, torch.tensor(NAN))
    assert layer.weight.data_ptr() == address and float(layer.weight_scale) == 0.5


def test_a_weight_of_16_bits_that_is_nan_is_named():
    config = get_quantization_config("fp8_per_channel", "cpu").online().bind(dispatch_for("cpu"))
    layer = LinearBase(64, 32, False, quant_config=config, prefix="q_proj")
    weight = torch.ones(32, 64)
    weight[3, 5] = NAN
    layer.quant_method.pending.add("weight", weight)
    with pytest.raises(LoadError, match=r"as stored in q_proj\.weight") as caught:
        layer.quant_method.process_weights_after_loading(layer)
    assert "1 of 32 NaN, the first at [3, 0]" in str(caught.value)


def test_a_second_scale_is_looked_at_too():
    """A stored divisor of 0 is an infinite multiplier."""
    spec = parse_spec("fp4_e2m1[1x16]:e4m3:second[*x*]")
    (sound,) = quantize_weight(torch.ones(2, 32), spec).segments
    segment = replace(sound, second_scale=torch.tensor([[INF]]))
    stored = ({"weight_scale": sound.scale, "weight_global_scale": torch.zeros(1)},)
    pending = SimpleNamespace(name="model.up_proj", spelled=({name: name for name in stored[0]},))
    facts = LayerFacts(prefix="model.up_proj")
    with pytest.raises(LoadError, match=r"second scale of the weight: 1 of 1 infinite") as caught:
        require_sound(CanonicalWeight(segments=(segment,)), stored, pending, facts)
    assert "model.up_proj.weight_global_scale" in caught.value.names
    require_sound(CanonicalWeight(segments=(sound,)), stored, pending, facts)
