"""Tensors that nothing has read: which are accounted for, and which are an error."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from quantdock.checkpoint import read_header
from quantdock.errors import LoadError
from quantdock.loading.left_over import require_codes_read, require_none_left
from quantdock.loading.sources import Sources
from toy_gptq import GPTQ, integer_llama
from toy_llama import DOWN, LINEARS, load, logits, write


@pytest.fixture
def make_sources(tmp_path):
    """Return a function that returns the ledger of a file with tensors of these names."""

    def make(*names: str, of=torch.ones) -> Sources:
        save_file({name: of(2) for name in names}, tmp_path / "model.safetensors")
        return Sources(read_header(tmp_path / "model.safetensors"))

    return make


@pytest.mark.parametrize("require", [require_codes_read, require_none_left])
def test_an_unread_scale_of_a_built_layer_is_an_error(make_sources, require):
    sources = make_sources("a.weight", "a.weight_scale", "a.weight_scale_2", "a.k_scale")
    sources.read("a.weight")
    sources.read("a.weight_scale")
    with pytest.raises(LoadError) as caught:
        require(sources, {"a"})
    assert caught.value.names == ("a.weight_scale_2",)
    assert "the nearest name that layers take is weight_scale" in str(caught.value)


@pytest.mark.parametrize("require", [require_codes_read, require_none_left])
def test_modules_that_were_not_built_and_kv_scales_may_stay_unread(make_sources, require):
    names = ("a.k_scale", "a.rotary_emb.inv_freq", "mtp.fc.weight", "mtp.fc.weight_scale")
    sources = make_sources(*names)
    require(sources, {"a"})
    assert sources.left_over() == list(names)


@pytest.mark.parametrize(
    "last", ["foo_scale", "scale", "w_zeros", "qzeros_2", "zero_point", "weight_packed_2"]
)
def test_what_sounds_like_a_scale_is_one_beside_a_layer(make_sources, last):
    with pytest.raises(LoadError) as caught:
        require_none_left(make_sources(f"a.{last}"), {"a"})
    assert caught.value.names == (f"a.{last}",)
    require_none_left(make_sources(f"b.{last}"), {"a"})


@pytest.mark.parametrize("name", ["e.9.w1.weight", "e.0.w1.extra.weight", "e.zeros", "e.0.w1.x"])
def test_nothing_below_experts_may_stay_unread(make_sources, name):
    with pytest.raises(LoadError) as caught:
        require_none_left(make_sources(name), (), {"e"})
    assert caught.value.names == (name,)


def test_what_the_class_of_the_model_leaves_unread_may_stay_so(make_sources):
    names = ["a.w_scale", "e.0.w1.weight"]
    sources = make_sources(*names)
    require_none_left(sources, {"a"}, {"e"}, (r"^a\..*", r"w1"))
    assert sources.left_over() == names  # and the plan lists them


@pytest.mark.parametrize("name", ["a.bias", "a.score_bias", "e.0.w1.bias", "e.gate_up_proj_bias"])
def test_a_bias_may_stay_unread_if_it_is_zero(make_sources, name):
    sources = make_sources(name, of=torch.zeros)
    require_none_left(sources, {"a"}, {"e"})
    assert sources.left_over() == []
    with pytest.raises(LoadError) as caught:
        require_none_left(make_sources(name), {"a"}, {"e"})
    assert caught.value.names == (name,)
    assert f"  1 that are not zero: {name}\n" in str(caught.value)


def test_zeros_that_autogptq_stores_change_nothing(tmp_path):
    tensors = integer_llama()
    plain = logits(load(write(tmp_path / "plain", tensors, GPTQ)))
    for name in LINEARS:
        n = tensors[f"{name}.scales"].shape[1]
        tensors[f"{name}.bias"] = torch.zeros(n, dtype=torch.float16)
    model = load(write(tmp_path / "zeros", tensors, GPTQ))
    assert torch.equal(logits(model), plain)
    assert model.quantdock_plan.unused == ()


@pytest.mark.parametrize("shape", [(256,), (1, 256)], ids=str)
def test_a_bias_that_counts_is_an_error(tmp_path, shape):
    tensors = integer_llama()
    tensors[f"{DOWN}.bias"] = torch.zeros(shape, dtype=torch.float16)
    tensors[f"{DOWN}.bias"].view(-1)[3] = 0.5
    with pytest.raises(LoadError) as caught:
        load(write(tmp_path, tensors, GPTQ))
    assert caught.value.names == (f"{DOWN}.bias",)
