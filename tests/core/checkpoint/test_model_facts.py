"""What config.json says of the model."""

from __future__ import annotations

import pytest

from quantdock.checkpoint.model_facts import (
    has_experts,
    has_head,
    is_tied,
    may_have_head,
    model_type,
    num_layers,
    stated_dtype,
)


def test_names():
    assert model_type({"model_type": "llama", "architectures": ["X"]}) == "llama"
    assert model_type({"architectures": ["LlamaForCausalLM"]}) == "LlamaForCausalLM"
    assert model_type({"architectures": None}) == ""


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "torch.float16"}, "float16"),
        ({"vision_config": {"dtype": "float32"}, "text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({"dtype": None}, None),
    ],
)
def test_dtype(config, dtype):
    assert stated_dtype(config) == dtype


def test_tying_depth_experts_and_head():
    config = {
        "architectures": ["XForConditionalGeneration"],
        "text_config": {"tie_word_embeddings": True, "num_hidden_layers": 7, "num_experts": 8},
    }
    assert (is_tied(config), num_layers(config), has_experts(config), has_head(config)) == (
        True,
        7,
        True,
        True,
    )
    assert (is_tied({}), num_layers({}), has_experts({}), has_head({})) == (
        None,
        None,
        False,
        False,
    )


@pytest.mark.parametrize("architectures", [1, True, "LlamaForCausalLM", {"a": 1}, [], [1]])
def test_architectures_that_are_no_list_of_names(architectures):
    config = {"architectures": architectures}
    assert model_type(config) == "" and not has_head(config)
    assert may_have_head(config)  # loading builds a causal model


@pytest.mark.parametrize(
    ("name", "expected"),
    [("LlamaForCausalLM", True), ("GPT2LMHeadModel", True), ("LlamaModel", False)],
)
def test_a_stated_architecture_says_whether_there_is_a_head(name, expected):
    config = {"architectures": [name]}
    assert has_head(config) is may_have_head(config) is expected
