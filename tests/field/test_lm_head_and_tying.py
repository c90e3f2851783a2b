"""Heads of the field: S26, S27 - tied, stored twice, missing, quantized."""

from __future__ import annotations

import pytest
import torch

import quantdock
from quantdock.errors import LoadError
from toy_llama import BLOCK, EMBEDDING, HEAD, IDS, encoded, llama, load, logits, plans, run, write

LISTED = {**BLOCK, "modules_to_not_convert": ["lm_head"]}
TIED = {"tie_word_embeddings": True}


def with_head(head):
    tensors = llama("128x128")
    del tensors[f"{HEAD}.weight"]
    return tensors if head is None else tensors | {f"{HEAD}.weight": head.clone()}


def hidden(model):
    """Return what the head is given."""
    with torch.no_grad():
        return model.model(input_ids=IDS).last_hidden_state


@pytest.mark.parametrize("stored", [True, False])
def test_s26_a_tied_head_is_the_embedding_stored_or_not(tmp_path, stored):
    embedding = llama()[f"{EMBEDDING}.weight"]
    model = load(write(tmp_path, with_head(embedding if stored else None), LISTED, **TIED))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert torch.equal(logits(model), hidden(model) @ embedding.float().T)
    assert not [w for w in model.quantdock_plan.warnings if "tie" in w]
    assert plans(model)[HEAD].decision == "unquantized"
    assert model.quantdock_plan.unused == ()


def test_s26_a_tied_head_that_differs_loads_and_says_what_is_used(tmp_path):
    other = 2 * llama()[f"{EMBEDDING}.weight"]
    model = load(write(tmp_path, with_head(other), LISTED, **TIED))
    (warning,) = [w for w in model.quantdock_plan.warnings if "ties" in w]
    assert warning == (
        "config.json ties lm_head.weight to model.embed_tokens.weight, and the file stores two "
        "that differ: both are used as stored"
    )
    assert torch.equal(logits(model), hidden(model) @ other.float().T)


def test_s26_an_untied_head_that_is_missing_is_an_error(tmp_path):
    folder = write(tmp_path, with_head(None), LISTED)
    with pytest.raises(LoadError, match=r"1 tensor of the model .*\n  lm_head.weight"):
        load(folder)
    (warning,) = [w for w in quantdock.explain(folder).warnings if HEAD in w]
    assert warning == "config.json says tie_word_embeddings=false, and no lm_head.weight is stored"


def test_s26_a_missing_head_where_the_config_is_silent_is_tied_with_a_warning(tmp_path):
    model = load(write(tmp_path, with_head(None), LISTED, tie_word_embeddings=None))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert any("does not say whether it is tied" in w for w in model.quantdock_plan.warnings)


@pytest.mark.parametrize("block", [BLOCK, LISTED])
def test_s27_the_head_is_plain_though_no_list_says_so(tmp_path, block):
    head = 3 * llama()[f"{HEAD}.weight"]
    model = load(write(tmp_path, with_head(head), block))
    assert plans(model)[HEAD].decision == "unquantized"
    assert torch.equal(model.lm_head.weight, head.float())
    assert not [note for note in model.quantdock_plan.notes if HEAD in note]


def test_s27_a_head_that_is_stored_quantized_runs_quantized(tmp_path):
    head = llama()[f"{HEAD}.weight"]
    tensors = with_head(None) | encoded(HEAD, head, "128x128")
    folder = write(tmp_path, tensors, BLOCK)
    model = load(folder)
    layer = plans(model)[HEAD]
    assert layer.scheme == "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"
    x = torch.eye(256)
    expected = load(folder, "none").lm_head.weight
    assert torch.allclose(run(model, HEAD, x), expected.T, rtol=1e-6, atol=0)
    assert logits(model).shape == (1, IDS.shape[1], 320)


def test_s27_a_tied_model_whose_file_stores_its_head_quantized(tmp_path):
    head = llama()[f"{EMBEDDING}.weight"]
    tensors = with_head(None) | encoded(HEAD, head, "128x128")
    model = load(write(tmp_path, tensors, BLOCK, **TIED))
    assert plans(model)[HEAD].decision == "quantized"
    assert any("the file stores the first quantized" in w for w in model.quantdock_plan.warnings)
    assert model.lm_head.weight.dtype == torch.float8_e4m3fn
    assert model.get_input_embeddings().weight.dtype == torch.float32
    near = hidden(model) @ head.float().T
    assert ((logits(model) - near).norm() / near.norm()).item() < 0.06


def test_s27_quantizing_at_load_leaves_the_head_alone(tmp_path):
    folder = write(tmp_path, llama())
    for method in ("fp8", "fp8_per_channel", "fp8_per_block", "mxfp8"):
        model = load(folder, method)
        assert torch.equal(model.lm_head.weight, llama()[f"{HEAD}.weight"].float())
        assert plans(model)[HEAD].because == "online methods leave the head alone"


@pytest.mark.parametrize("method", [None, "fp8"])
@pytest.mark.parametrize("said", [True, None])
def test_a_tied_head_is_a_layer_of_every_plan(tmp_path, method, said):
    """It has no tensor of its own; the plan of the headers lists it as the loaded one does."""
    block = LISTED if method is None else None
    tensors = with_head(None) if method is None else llama()
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(HEAD)}
    folder = write(tmp_path, tensors, block, tie_word_embeddings=said)
    planned = quantdock.explain(folder, quantization=method)
    loaded = load(folder, method).quantdock_plan
    for plan in (planned, loaded):
        head = {layer.prefix: layer for layer in plan.layers}[HEAD]
        assert (head.decision, head.bytes_stored, head.bytes_memory) == ("unquantized", 0, 0)
        assert ("tied to the embedding" in head.because) is (said is True)
        assert (head.n, head.k) == llama()[f"{EMBEDDING}.weight"].shape
    assert planned.totals.layers == loaded.totals.layers
    assert planned.ignore_unmatched == loaded.ignore_unmatched == ()
