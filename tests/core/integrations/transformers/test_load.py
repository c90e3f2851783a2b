"""``quantdock.load`` on checkpoints made here: biases, ties, dtypes, moves, refusals."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

import quantdock
from model_outputs import IDS, logits
from quantdock import Absent, Platform, PlatformEntry
from quantdock.errors import (
    CheckpointError,
    ConfigError,
    LoadError,
    MismatchError,
    NothingQuantizedError,
    PlatformError,
    QuantDockError,
)
from quantdock.integrations.transformers.place import choose_place
from quantdock.layers import LinearBase
from quantdock.testing import make_plugin, use_plugins
from toy_files import edit_config, edit_tensors, write_block_checkpoint

# Random models pass errors on; measured: 0.03 to 0.11.
CLOSE = 0.15


def relative(ours, reference):
    return ((ours - reference).norm() / reference.norm()).item()


def reference(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "gemma3_text", "phi3"])
def test_plain_load_equals_transformers(make_toy, model_type):
    folder = make_toy(model_type)
    ours = quantdock.load(folder, device="cpu", dtype="float32")
    assert torch.equal(logits(ours), logits(reference(folder)))


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gemma3_text", "phi3"])
def test_quantized_layers_keep_biases_and_stay_close(make_toy, model_type):
    folder = make_toy(model_type)
    ours = quantdock.load(folder, quantization="fp8_per_channel", device="cpu", dtype="float32")
    biases = [m.bias is not None for m in ours.modules() if isinstance(m, LinearBase)]
    assert any(biases) is (model_type == "qwen2")
    assert relative(logits(ours), logits(reference(folder))) < CLOSE


def test_serialized_blocks_with_ragged_edges(make_toy, tmp_path):
    folder = make_toy(intermediate_size=704)
    block = write_block_checkpoint(folder, tmp_path / "block")
    ours = quantdock.load(block, device="cpu", dtype="float32")
    assert relative(logits(ours), logits(reference(folder))) < CLOSE
    online = quantdock.load(folder, quantization="fp8_per_block", device="cpu", dtype="float32")
    assert torch.equal(logits(ours), logits(online)), "the same codes either way"


def test_auto_dtype_is_the_checkpoints(make_toy):
    model = quantdock.load(make_toy(dtype=torch.float16), quantization="fp8_per_tensor")
    assert model.dtype == torch.float16
    assert logits(model).isfinite().all()


def test_casting_a_model_leaves_codes_and_scales(make_toy):
    model = quantdock.load(make_toy(), quantization="fp8_per_block", device="cpu")
    layer = model.get_submodule("model.layers.0.mlp.up_proj")
    before = {name: p.clone() for name, p in layer._parameters.items() if p is not None}
    model.half()
    for name, tensor in before.items():
        after = layer._parameters[name]
        assert after.dtype == tensor.dtype
        assert torch.equal(after.view(torch.uint8), tensor.view(torch.uint8))
    assert model.get_input_embeddings().weight.dtype == torch.float16
    assert logits(model).isfinite().all()


def test_tied_head_shares_the_embedding(make_toy):
    folder = make_toy(tie_word_embeddings=True)
    model = quantdock.load(folder, quantization="fp8", device="cpu", dtype="float32")
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert relative(logits(model), logits(reference(folder))) < CLOSE


def test_tied_config_with_an_equal_head_in_the_file(make_toy):
    folder = make_toy()
    edit_tensors(
        folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()})
    )
    edit_config(folder, tie_word_embeddings=True)
    model = quantdock.load(folder, device="cpu")
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.quantdock_plan.warnings == ()


def test_tied_config_with_another_head_in_the_file_warns(make_toy):
    folder = make_toy()
    edit_config(folder, tie_word_embeddings=True)
    model = quantdock.load(folder, device="cpu", dtype="float32")
    assert "ties lm_head.weight to model.embed_tokens.weight" in model.quantdock_plan.warnings[0]
    edit_config(folder, tie_word_embeddings=False)
    assert torch.equal(logits(model), logits(quantdock.load(folder, device="cpu", dtype="float32")))


def test_untied_and_missing_head_is_an_error(make_toy):
    folder = make_toy()
    edit_tensors(folder, lambda t: t.pop("lm_head.weight"))
    with pytest.raises(LoadError, match=r"1 tensor of the model is in no file.*\n  lm_head.weight"):
        quantdock.load(folder, device="cpu")


def test_missing_head_where_the_config_is_silent_is_tied_with_a_warning(make_toy):
    folder = make_toy()
    edit_tensors(folder, lambda t: t.pop("lm_head.weight"))
    edit_config(folder, tie_word_embeddings=None)
    model = quantdock.load(folder, device="cpu")
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert "does not say whether it is tied" in model.quantdock_plan.warnings[0]


def test_missing_tensor_is_named(make_toy):
    folder = make_toy()
    edit_tensors(folder, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(LoadError, match=r"model\.layers\.1\.mlp\.up_proj"):
        quantdock.load(folder, device="cpu")
    with pytest.raises(QuantDockError, match=r"model\.layers\.1\.mlp\.up_proj"):
        quantdock.load(folder, quantization="fp8", device="cpu")


def test_wrong_shape_is_named(make_toy):
    folder = make_toy()
    name = "model.layers.1.mlp.up_proj.weight"
    edit_tensors(folder, lambda t: t.update({name: t[name][:100].clone()}))
    with pytest.raises(LoadError, match=r"\[100, 256\][\s\S]*\[512, 256\]"):
        quantdock.load(folder, device="cpu")
    with pytest.raises(LoadError, match=r"\[100, 256\][\s\S]*\[512, 256\]"):
        quantdock.load(folder, quantization="fp8", device="cpu")


def test_missing_scale_is_named(make_toy, tmp_path):
    block = write_block_checkpoint(make_toy(), tmp_path / "block")
    edit_tensors(block, lambda t: t.pop("model.layers.0.self_attn.q_proj.weight_scale_inv"))
    with pytest.raises(QuantDockError, match=r"q_proj[\s\S]*weight_scale_inv"):
        quantdock.load(block, device="cpu")


def test_scale_that_nothing_reads_is_an_error(make_toy, tmp_path):
    block = write_block_checkpoint(make_toy(), tmp_path / "block")
    name = "model.layers.0.self_attn.q_proj.weight_zero_point"
    edit_tensors(block, lambda t: t.update({name: torch.zeros(2, 2)}))
    with pytest.raises(LoadError, match=name):
        quantdock.load(block, device="cpu")


def test_quantization_tensors_without_a_block_are_an_error(make_toy, tmp_path):
    block = write_block_checkpoint(make_toy(), tmp_path / "block")
    edit_config(block, quantization_config=None)
    with pytest.raises(LoadError, match="nothing says how it is quantized"):
        quantdock.load(block, device="cpu")


def test_tensors_of_modules_that_were_not_built_are_listed(make_toy):
    folder = make_toy()
    edit_tensors(folder, lambda t: t.update({"mtp.fc.weight": torch.zeros(4, 4)}))
    model = quantdock.load(folder, quantization="fp8", device="cpu")
    assert model.quantdock_plan.unused == ("mtp.fc.weight",)


def test_truncated_file_is_refused_before_anything_is_built(make_toy):
    path = make_toy() / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        quantdock.load(path.parent, device="cpu")


def test_ignore_and_choices(make_toy):
    model = quantdock.load(
        make_toy(),
        quantization="fp8_per_channel",
        device="cpu",
        ignore=["model.layers.1.mlp"],
        choices={"*.o_proj": "fp8_per_block"},
    )
    schemes = {layer.prefix: layer.scheme for layer in model.quantdock_plan.layers}
    assert schemes["model.layers.1.mlp.up_proj"] is None
    assert schemes["model.layers.0.mlp.up_proj"].startswith("fp8_e4m3[1x*]")
    assert schemes["model.layers.0.self_attn.o_proj"].startswith("fp8_e4m3[128x128]")


def test_ignoring_everything_is_an_error(make_toy):
    with pytest.raises(NothingQuantizedError, match="no layer of this checkpoint"):
        quantdock.load(make_toy(), quantization="fp8", device="cpu", ignore=["*"])


def test_a_method_of_another_kind_than_the_files_is_refused(make_toy, tmp_path):
    block = write_block_checkpoint(make_toy(), tmp_path / "block")
    with pytest.raises(MismatchError, match="fp8_per_channel"):
        quantdock.load(block, quantization="fp8_per_channel", device="cpu")


def test_wrong_dtype_is_refused_with_the_choices(make_toy):
    with pytest.raises(ConfigError, match=r"dtype=int8[\s\S]*bfloat16"):
        quantdock.load(make_toy(), dtype="int8", device="cpu")


def test_a_decoded_model_can_be_saved(make_toy, tmp_path):
    block = write_block_checkpoint(make_toy(), tmp_path / "block")
    model = quantdock.load(block, quantization="none", device="cpu", dtype="float32")
    model.save_pretrained(tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert torch.equal(logits(model), logits(again.eval()))


def test_generate_runs(make_toy):
    model = quantdock.load(make_toy(), quantization="fp8", device="cpu")
    output = model.generate(
        input_ids=IDS[:, :5], max_new_tokens=4, min_new_tokens=4, do_sample=False
    )
    assert output.shape == (1, 9)


def test_compiles_without_a_graph_break(make_toy):
    model = quantdock.load(make_toy(), quantization="fp8_per_block", device="cpu")
    compiled = torch.compile(model.model.layers[0].mlp, fullgraph=True, backend="eager")
    x = torch.randn(1, 5, 256, dtype=torch.bfloat16)
    with torch.no_grad():
        assert torch.equal(compiled(x), model.model.layers[0].mlp(x))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"hidden_size": "256"}, "cannot read the model config"),
        ({"num_attention_heads": 0}, "cannot read the model config"),
        ({"hidden_act": "nope"}, "cannot build the model of config.json"),
        ({"architectures": ["BertModel"]}, "architecture BertModel"),
    ],
)
def test_a_config_that_transformers_cannot_use(make_toy, change, text):
    folder = make_toy()
    edit_config(folder, **change)
    with pytest.raises(CheckpointError, match=text):
        quantdock.load(folder, device="cpu")


@pytest.mark.parametrize("architectures", [["pipeline"], [7], ["__name__"], 7, {"a": 1}])
def test_an_architecture_that_is_no_model_is_not_called(make_toy, architectures):
    folder = make_toy()
    edit_config(folder, architectures=architectures)
    assert type(quantdock.load(folder, device="cpu")).__name__ == "LlamaForCausalLM"


def test_a_broken_generation_config_is_named_before_the_weights_are_read(make_toy):
    folder = make_toy()
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"generation_config\.json cannot be read"):
        quantdock.load(folder, device="cpu", track=lambda items: pytest.fail("weights are read"))


def test_a_described_platform_of_another_machine_is_refused():
    probe, describe = f"{__name__}:no_toy", f"{__name__}:toy_of"
    entry = PlatformEntry(name="toyacc", rank=1, probe=probe, describe=describe, archs=("t1",))
    toy = make_plugin("toy", get_platforms=lambda: (entry,))
    with use_plugins(toy), pytest.raises(PlatformError) as caught:
        choose_place("auto", "toyacc:t1")
    assert str(caught.value).startswith("toyacc:t1 is not on this machine, so nothing can be")
    assert "no toy driver" in caught.value.why[0] and "explain --platform" in caught.value.todo


def no_toy(index):
    return Absent(reason="no toy driver")


def toy_of(arch):
    return Platform(name="toyacc", arch=arch, device="cpu")


def test_the_bytes_of_experts_are_those_of_all_their_tensors(make_toy):
    folder = make_toy("mixtral", num_local_experts=4)
    totals = quantdock.load(folder, device="cpu").quantdock_plan.totals
    planned = quantdock.explain(folder).totals
    assert totals.bytes_stored == totals.bytes_memory  # the router is no layer once loaded
    assert totals.bytes_stored + totals.bytes_other == planned.bytes_stored + planned.bytes_other


@pytest.mark.parametrize("quantization", [None, "none"])
def test_scales_that_no_weight_can_have_are_refused(make_toy, tmp_path, quantization):
    folder = write_block_checkpoint(make_toy(), tmp_path / "block")
    name = "model.layers.1.mlp.up_proj.weight_scale_inv"
    edit_tensors(folder, lambda tensors: tensors[name][1, 0].fill_(torch.nan))
    with pytest.raises(LoadError) as caught:
        quantdock.load(folder, quantization, device="cpu")
    text = str(caught.value)
    assert text.startswith("model.layers.1.mlp.up_proj has scales that no weight can have.")
    assert f"1 of 8 NaN, the first at [1, 0]\n  as stored in {name}" in text
    assert "quantdock doctor" in text
    model = quantdock.load(folder, quantization, device="cpu", lenient=True)
    assert not bool(logits(model).isfinite().all())


def test_whole_numbers_where_the_model_has_floats_are_refused(make_toy):
    folder = make_toy()
    model = quantdock.load(folder, device="cpu")
    name = "model.layers.1.input_layernorm.weight"
    edit_tensors(folder, lambda tensors: tensors.update({name: torch.ones(256).int()}))
    with pytest.raises(LoadError, match=f"{name} is stored as int32, and the model has bfloat16"):
        quantdock.load(folder, device="cpu")
    with pytest.raises(LoadError, match=f"{name} is int32, the model has floats"):
        quantdock.reload(model, folder)


@pytest.mark.parametrize("quantization", [None, "none"])
def test_options_of_quantization_need_some(make_toy, quantization):
    folder = make_toy()
    with pytest.raises(NothingQuantizedError, match="The kernel reference was required"):
        quantdock.load(folder, quantization, device="cpu", require="reference")
    with pytest.raises(ConfigError, match="none is asked for"):
        quantdock.load(folder, quantization, device="cpu", ignore=["up_proj"])


def test_a_decoded_model_says_none(make_toy, tmp_path):
    folder = write_block_checkpoint(make_toy(), tmp_path / "block")
    plan = quantdock.load(folder, "none", device="cpu").quantdock_plan
    assert plan.summary().startswith("none on cpu") and "0 of " in plan.summary()
    assert "decoded from fp8" in plan.method_source


def test_an_option_that_changes_nothing_is_told(make_toy):
    told = "expert_parallel has no effect: "
    alone = quantdock.load(make_toy(), device="cpu", expert_parallel=True).quantdock_plan
    assert f"{told}one rank holds the whole model" in alone.warnings
    ranks = quantdock.ParallelGroup(rank=0, size=2)
    dense = quantdock.load(make_toy(), device="cpu", expert_parallel=True, tp=ranks).quantdock_plan
    assert f"{told}config.json tells of no experts" in dense.warnings
    plain = quantdock.load(make_toy(), device="cpu").quantdock_plan
    assert not any("no effect" in warning for warning in plain.warnings)
