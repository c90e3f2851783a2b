"""Scales of keys and values from a file: shapes, what is missing, what contradicts."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from quantdock.checkpoint.header import read_header
from quantdock.configs.fp8 import Fp8Config
from quantdock.configs.kv_scales import assign_kv_scales
from quantdock.errors import LoadError
from quantdock.loading.kv_scales import KVScaleReader
from quantdock.loading.sources import Sources
from quantdock.schemes import KVCacheSpec

FP8 = KVCacheSpec(element="fp8_e4m3")


@pytest.fixture
def read(tmp_path):
    """Return a function that reads the scales of layer "attn" from a file with these tensors."""

    def call(spec=FP8, heads=2, **tensors):
        stored = {f"attn.{name}": torch.as_tensor(value) for name, value in tensors.items()}
        save_file(stored, tmp_path / "x.safetensors")
        sources = Sources(read_header(tmp_path / "x.safetensors"))
        reader = KVScaleReader(sources=sources, config=Fp8Config(), spec=spec, heads=heads)
        result = reader.read(assign_kv_scales(stored, ["attn"])["attn"])
        assert sources.left_over() == []
        return result

    return call


def test_scalars_are_read_as_f32(read):
    found = read(k_scale=torch.tensor(0.02), v_scale=torch.tensor([0.5]).to(torch.bfloat16))
    assert found.scales.k.value == torch.tensor(0.02).item()
    assert found.scales.v.value == 0.5
    assert (found.has_keys, found.has_values, found.warnings) == (True, True, ())


@pytest.mark.parametrize("shape", [(2,), (2, 1), (1, 2, 1, 1)])
def test_one_scale_for_each_head(read, shape):
    found = read(k_scale=torch.tensor([0.5, 2.0]).view(shape), v_scale=1.5)
    assert found.scales.k.tensor.tolist() == [0.5, 2.0] and found.scales.k.value is None
    assert found.scales.v.value == 1.5


def test_another_number_of_scales_is_refused(read):
    with pytest.raises(LoadError, match=r"attn\.k_scale has 3 scales.*\n.* 2 are one for each"):
        read(k_scale=torch.ones(3))


def test_what_is_missing_is_one_for_floats_and_computed_for_integers(read):
    found = read(v_scale=0.25)
    assert (found.scales.k.value, found.scales.v.value) == (1.0, 0.25)
    assert (found.has_keys, found.has_values) == (False, True)
    found = read(KVCacheSpec(element="int8"), v_scale=0.25)
    assert (found.scales.k, found.scales.v.value) == (None, 0.25)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_was_never_calibrated_is_none(read, value):
    found = read(k_scale=value, v_scale=0.5)
    assert (found.scales.k.value, found.has_keys) == (1.0, False)
    (warning,) = found.warnings
    assert warning.startswith("attn.k_scale is [") and warning.endswith("is not used")


def test_two_that_differ_give_the_largest_with_a_warning(read):
    tensors = {"k_scale": 0.5, "k_proj.k_scale": 0.75, "v_scale": 0.5, "attn.v_scale": 0.5}
    found = read(**tensors)
    assert (found.scales.k.value, found.scales.v.value) == (0.75, 0.5)
    (warning,) = found.warnings
    assert "attn.k_proj.k_scale" in warning and warning.endswith(" differ: the largest is used")


@pytest.mark.parametrize(("element", "expected"), [("fp8_e4m3", 0.25), ("int8", 112 / 127)])
def test_a_largest_value_is_divided_by_the_elements(read, element, expected):
    found = read(KVCacheSpec(element=element), **{"k_bmm_quantizer._amax": 112.0})
    assert found.scales.k.value == torch.tensor(expected).item()


def test_exponent_bytes_are_decoded_as_such(read):
    assert read(k_scale=torch.tensor(124, dtype=torch.uint8)).scales.k.value == 0.125


def test_zero_points_must_be_zero(read):
    assert read(k_scale=0.5, k_zero_point=torch.zeros(1, dtype=torch.int8)).has_keys
    with pytest.raises(LoadError, match=r"attn\.v_zero_point is not zero.*\n.*symmetrically"):
        read(k_scale=0.5, v_zero_point=torch.ones(1, dtype=torch.int8))
