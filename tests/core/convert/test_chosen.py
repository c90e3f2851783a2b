"""Which layers are converted: names against classes, routers, experts, patterns, edges."""

from __future__ import annotations

import pytest
import torch

from quantdock.checkpoint import open_checkpoint
from quantdock.convert.chosen import choose_layers, plain_names
from quantdock.convert.request import read_request
from quantdock.errors import ConfigError, NothingQuantizedError
from quantdock.schemes import LayerFacts
from toy_llama import DOWN, GATE, LAYER, LINEARS, OUT, UP, Q, llama, write

EXPERT = f"{LAYER}.mlp.experts"


def chosen(folder, to="fp8_per_channel", known=None, **options):
    return choose_layers(open_checkpoint(folder), read_request(to, **options), known)


def test_all_linear_layers_and_nothing_else(plain):
    found = chosen(plain)
    assert set(found.quantized) == set(LINEARS)
    assert found.plain == ("lm_head",)
    assert found.warnings == ()


def test_patterns_leave_out_and_choose(plain):
    choices = {"*.o_proj": "fp8_per_tensor", "*.up_proj": "none"}
    found = chosen(plain, ignore=["mlp.gate_proj"], choices=choices)
    assert set(found.plain) == {GATE, UP, "lm_head"}
    assert str(found.quantized[OUT].weight) == "fp8_e4m3[*x*]"
    assert str(found.quantized[Q].weight) == "fp8_e4m3[1x*]"


def test_patterns_that_match_nothing_are_told(plain):
    found = chosen(plain, ignore=["mlp.gat_proj"], choices={"*.nothing": "none"})
    assert found.warnings == (
        "ignore[0] = 'mlp.gat_proj' matches no layer; did you mean gate_proj?",
        "choices['*.nothing'] = 'none' matches no layer",
    )


def test_a_tied_head_is_listed_although_it_is_not_stored(tmp_path):
    tensors = llama()
    del tensors["lm_head.weight"]
    assert chosen(write(tmp_path / "tied", tensors)).plain == ("lm_head",)


def test_routers_and_experts_stay_and_are_listed_by_their_module(tmp_path):
    tensors = llama()
    tensors[f"{LAYER}.mlp.gate.weight"] = torch.zeros(4, 256)
    for expert in range(2):
        tensors[f"{EXPERT}.{expert}.up_proj.weight"] = torch.zeros(8, 256)
    found = chosen(write(tmp_path / "moe", tensors))
    assert set(found.quantized) == set(LINEARS)
    assert set(found.plain) == {"lm_head", f"{LAYER}.mlp.gate", EXPERT}
    assert "experts are copied, not quantized: " in found.notes[-1]
    assert f"{EXPERT}.{{0-1}}.up_proj" in found.notes[-1]


def test_experts_that_a_choice_names_are_quantized(tmp_path):
    tensors = llama()
    for expert in range(2):
        for name in ("gate_proj", "up_proj"):
            tensors[f"{EXPERT}.{expert}.{name}.weight"] = torch.zeros(8, 256)
    folder = write(tmp_path / "moe", tensors)
    found = chosen(folder, choices={"*.experts.*": "mxfp8"})
    assert str(found.quantized[f"{EXPERT}.1.up_proj"].weight) == "fp8_e4m3[1x32]:e8m0:ceil"
    assert len(found.quantized) == 4 + len(LINEARS) and found.plain == ("lm_head",)
    assert not any("experts" in note for note in found.notes)


def test_stacked_experts_are_copied_too(tmp_path):
    tensors = {**llama(), f"{EXPERT}.gate_up_proj": torch.zeros(2, 256, 16)}
    found = chosen(write(tmp_path / "stacked", tensors))
    assert EXPERT in found.plain and set(found.quantized) == set(LINEARS)


def test_the_models_classes_count_where_they_are_known(plain):
    known = [LayerFacts(prefix=name) for name in LINEARS if name != DOWN]
    found = chosen(plain, known=known)
    assert DOWN not in found.quantized and DOWN in found.plain
    assert found.notes == (
        f"copied, because the model's code builds no linear layer of them: {DOWN}",
    )
    assert "told by the names" in chosen(plain).notes[0]


def test_edges_of_tiles_are_told(tmp_path):
    folder = write(tmp_path / "ragged", llama(intermediate=272))
    (warning,) = chosen(folder, "fp8_per_block").warnings
    assert warning.startswith(f"3 layers end in a part of a tile ({DOWN}, {GATE}, {UP})")
    assert "transformers and compressed-tensors want whole tiles" in warning
    assert len(chosen(folder, "mxfp8").warnings) == 1
    assert chosen(folder, "fp8_per_channel").warnings == ()


def test_nothing_to_convert_is_an_error(plain):
    with pytest.raises(NothingQuantizedError, match="fp8_per_channel was asked for, and no layer"):
        chosen(plain, ignore=["*"])


def test_weights_that_are_no_floats_are_refused(tmp_path):
    tensors = {**llama(), f"{UP}.weight": torch.zeros(512, 256, dtype=torch.int8)}
    with pytest.raises(ConfigError, match=rf"{UP}\.weight is stored as int8"):
        chosen(write(tmp_path / "int8", tensors))


def test_names_for_the_list():
    layers = [("linear", "a"), ("embedding", "b"), ("experts", "m.experts.0.w1"), ("linear", "c")]
    assert plain_names(layers, {"a"}) == ("m.experts", "c", "lm_head")
    assert plain_names([("experts", "m.experts"), ("head", "out")], {"out"}) == ("m.experts",)
