"""What a plan warns of."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quantdock.kernel import Policy, Rejection
from quantdock.plan import LayerPlan
from quantdock.plan.messages import layer_warnings, model_notes, model_warnings

CAUSAL = {"architectures": ["LlamaForCausalLM"]}


def setting(**policy):
    return SimpleNamespace(dispatch=SimpleNamespace(policy=Policy(**policy)))


def layer(index, **facts):
    usual = {"kind": "linear", "decision": "quantized", "because": "b", "source": "s"}
    return LayerPlan(prefix=f"l.{index}.up", **{**usual, **facts})


def test_layers_with_the_same_trouble_are_one_line():
    layers = [layer(i, scheme="fp8_e4m3[*x*]", warnings=("w",) if i else ()) for i in range(4)]
    layers.append(layer(9, decision="error", because="no scale"))
    assert list(layer_warnings(layers, setting())) == [
        "4 layers (l.{0-3}.up): no kernel here runs fp8_e4m3[*x*]",
        "3 layers (l.{1-3}.up): w",
        "1 layer (l.9.up): cannot be built: no scale",
    ]


def test_a_required_kernel_is_what_lacks():
    warnings = layer_warnings([layer(0, scheme="fp8_e4m3[*x*]")], setting(require="fast"))
    assert list(warnings) == [
        "1 layer (l.0.up): the required kernel fast does not run fp8_e4m3[*x*]"
    ]


def test_why_a_required_kernel_does_not_run_is_told():
    rejected = (
        Rejection(kernel="other", reasons=("slow",)),
        Rejection(kernel="fsat", reasons=("no kernel of that name (did you mean fast?)",)),
    )
    lacking = layer(0, scheme="fp8_e4m3[*x*]", rejected=rejected)
    assert list(layer_warnings([lacking], setting(require="fsat"))) == [
        "1 layer (l.0.up): the required kernel fsat does not run fp8_e4m3[*x*]: no kernel of that "
        "name (did you mean fast?)"
    ]


def test_a_head_that_is_neither_tied_nor_stored():
    names = ["model.embed_tokens.weight"]
    (warning,) = model_warnings({**CAUSAL, "tie_word_embeddings": False}, names)
    assert "no lm_head.weight is stored" in warning
    for config in ({**CAUSAL, "tie_word_embeddings": True}, CAUSAL, {"tie_word_embeddings": False}):
        assert list(model_warnings(config, names)) == []
    assert list(model_warnings({**CAUSAL, "tie_word_embeddings": False}, ["lm_head.weight"])) == []


def test_blocks_of_which_nothing_is_stored():
    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in (0, 1, 4)]
    for depth, which in ((6, "layers 2-3, 5"), (4, "layers 2-3"), (3, "layer 2")):
        assert list(model_warnings({"num_hidden_layers": depth}, names)) == [
            f"config.json says num_hidden_layers={depth}, and no tensor of {which} is stored"
        ]
    assert list(model_warnings({"num_hidden_layers": 2}, names)) == []
    (huge,) = model_warnings({"num_hidden_layers": 10**12}, names)
    assert "layers 2-3, 5-999999999999 is stored" in huge
    for config, others in (({}, names), ({"num_hidden_layers": 6}, ["encoder.0.up.weight"])):
        assert list(model_warnings(config, others)) == []


def test_layers_beyond_the_model_are_noted():
    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(63)]
    (note,) = model_notes({"num_hidden_layers": 61}, names)
    assert note.startswith("layers 61, 62 lie beyond num_hidden_layers=61")
    assert list(model_notes({"num_hidden_layers": 63}, names)) == []
    assert list(model_notes({}, names)) == []


def test_troubles_that_differ_in_the_layer_s_number_are_one_line():
    shapes = {0: "[4, 2]", 1: "[4, 2]", 2: "[3, 2]"}
    layers = [
        layer(i, decision="error", because=f"l.{i}.up.scale is {shape}, not [8, 2]")
        for i, shape in shapes.items()
    ]
    assert list(layer_warnings(layers, setting())) == [
        "2 layers (l.{0-1}.up): cannot be built: l.*.up.scale is [4, 2], not [8, 2]",
        "1 layer (l.2.up): cannot be built: l.2.up.scale is [3, 2], not [8, 2]",
    ]


@pytest.mark.parametrize("codes", ["weight", "qweight", "weight_packed"])
def test_a_quantized_head_is_a_stored_head(codes):
    untied = {**CAUSAL, "tie_word_embeddings": False}
    assert list(model_warnings(untied, [f"lm_head.{codes}"])) == []
    assert list(model_warnings(untied, [f"head.{codes}"])) == []
    for other in ("lm_head.scales", f"model.layers.61.shared_head.head.{codes}"):
        assert len(list(model_warnings(untied, [other]))) == 1
