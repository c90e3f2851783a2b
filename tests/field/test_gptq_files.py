"""GPTQ and AWQ files of the field, whole; beside what configs and test_int_packing.py check."""

from __future__ import annotations

import itertools

import pytest
import torch

import quantdock
import toy_llava
from quantdock.configs.gptq_codes import encode_gptq
from quantdock.errors import ConfigError, LoadError, QuantDockError
from quantdock.layers import ParallelLMHead
from toy_gptq import AWQ, GPTQ, in_act_order, integer_llama, packed
from toy_llama import (
    DOWN,
    HEAD,
    LINEARS,
    UP,
    K,
    Q,
    V,
    dense,
    llama,
    load,
    logits,
    make_layer,
    plans,
    run,
    write,
    write_json,
    write_shards,
)
from toy_ranks import filled, ranks, relative

CPU = "cpu:generic"
SIDE = {
    **{"bits": 4, "group_size": 128, "sym": True, "desc_act": True, "damp_percent": 0.1},
    **{"true_sequential": True, "model_name_or_path": None, "model_file_base_name": "model"},
}


@pytest.mark.parametrize("at_top", [False, True])
def test_s01_an_awq_block_in_the_language_config(tmp_path, at_top):
    made = {toy_llava.in_file(name): t for name, t in integer_llama("awq").items()}
    others = {name: t for name, t in toy_llava.tensors().items() if name not in made}
    others = {n: t for n, t in others.items() if not n.startswith("language_model.")}
    folder = toy_llava.write(tmp_path, others | made, AWQ if at_top else None, AWQ)
    model = load(folder)
    found = plans(model)
    assert model.quantdock_plan.method == "awq"
    assert found[toy_llava.in_file(DOWN)].scheme == "uint4[1x128]:zero"
    assert found[toy_llava.TOWER_FC1].decision == "unquantized"
    assert found[toy_llava.TOWER_FC1].source == "config.json: text_config"
    plain = load(write(tmp_path / "llama", integer_llama("awq"), AWQ))
    assert torch.equal(logits(model), logits(plain))


def test_s11_awq_in_every_spelling_is_the_same_model(tmp_path):
    tensors = integer_llama("awq")
    blocks = (
        {"bits": 4, "group_size": 128, "zero_point": True, "version": "GEMM"},
        {"w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "gemm"},
        {"bits": 4, "group_size": 128, "modules_to_not_convert": None, "some_future_key": {"x": 1}},
    )
    found = [
        logits(load(write(tmp_path / str(i), tensors, {"quant_method": "AWQ", **block})))
        for i, block in enumerate(blocks)
    ]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_s14_parts_that_are_stored_differently_build_as_they_are(tmp_path):
    model = load(write(tmp_path, integer_llama(names=[Q, K, UP]), GPTQ))
    found = plans(model)
    assert {name for name in LINEARS if found[name].decision == "quantized"} == {Q, K, UP}
    assert torch.equal(model.get_submodule(V).weight, llama()[f"{V}.weight"].float())
    assert any("stored as bfloat16, though no entry" in n for n in model.quantdock_plan.notes)


@pytest.mark.parametrize(("x", "is_finite"), [(7.8984375, True), (15.796875, False)])
def test_s25_float16_sums_beyond_its_range(x, is_finite):
    """AWQ: code 9, zero 8, scale 1; K = 8192 ones times 7.9 is 64704, and twice that is not."""
    parts = packed(torch.ones(8, 8192), "awq")
    parts["qweight"].fill_(int("99999999", 16) - (1 << 32))
    parts["qzeros"].fill_(int("88888888", 16) - (1 << 32))
    parts["scales"].fill_(1.0)
    layer = make_layer(AWQ, 8192, [parts], name="awq", dtype=torch.float16, sizes=[8])
    y = layer(torch.full((1, 8192), x, dtype=torch.float16))
    assert y.isnan().sum() == 0
    assert torch.allclose(y, torch.tensor(64704.0).half(), rtol=5e-3) is is_finite


class TestHead:
    """S27: plain, quantized by word or by what is stored; divided among ranks with padding."""

    @pytest.mark.parametrize("said", [{"lm_head": True}, {}])
    def test_a_head_that_is_stored_quantized_runs_quantized(self, tmp_path, said):
        model = load(write(tmp_path, integer_llama(names=[*LINEARS, HEAD]), {**GPTQ, **said}))
        assert plans(model)[HEAD].scheme == "int4[1x128]"
        x = torch.eye(256)
        expected = load(tmp_path, "none").lm_head.weight
        assert torch.allclose(run(model, HEAD, x), expected.T, rtol=1e-5, atol=1e-6)
        assert logits(model).shape[-1] == 320

    def test_a_plain_head_stays_plain(self, tmp_path):
        model = load(write(tmp_path, integer_llama(), {**GPTQ, "lm_head": False}))
        assert torch.equal(model.lm_head.weight, llama()[f"{HEAD}.weight"].float())

    @pytest.mark.parametrize("size", [2, 3])
    def test_ranks_of_a_head_are_the_head_and_logits_beyond_it_never_win(self, size):
        parts = packed(0.1 * torch.randn(320, 256))
        kind = quantdock.get_quantization_config("gptq", CPU)
        config = kind.from_config({**GPTQ, "lm_head": True})
        config.bind(quantdock.dispatch_for(CPU))
        (whole,), divided = (
            [
                filled(ParallelLMHead(320, 256, quant_config=config, group=group), [parts])
                for group in ranks(count)
            ]
            for count in (1, size)
        )
        x = torch.randn(3, 256)
        found = torch.cat([head(x) for head in divided], dim=-1)
        assert relative(found[:, :320], whole(x)) < 1e-5
        assert (found.argmax(dim=-1) < 320).all()


class TestSideFile:
    """S34: GPTQ's own file of settings, alone and against config.json."""

    def tensors(self):
        parts = encode_gptq(in_act_order(256, 256, size=128))
        return llama() | {f"{Q}.{name}": tensor for name, tensor in parts.items()}

    def folder(self, tmp_path, block):
        tensors = self.tensors()
        del tensors[f"{Q}.weight"]
        write(tmp_path, tensors, block)
        write_json(tmp_path / "quantize_config.json", {**SIDE, "sym": False})
        return tmp_path

    def test_alone_it_is_read_with_act_order(self, tmp_path):
        model = load(self.folder(tmp_path, None))
        assert model.quantdock_plan.method_source == "quantize_config.json says gptq"
        assert plans(model)[Q].scheme == "uint4[1x128]:zero:act-order"

    def test_against_config_json_the_stored_index_decides(self, tmp_path):
        block = {**GPTQ, "sym": False, "desc_act": False}
        folder = self.folder(tmp_path, block)
        model = load(folder)
        (warning,) = [w for w in model.quantdock_plan.warnings if "differ" in w]
        assert "desc_act is false and true" in warning
        assert plans(model)[Q].scheme == "uint4[1x128]:zero:act-order"
        weight = in_act_order(256, 256, size=128).dequantize()
        layer = model.get_submodule(Q)
        assert torch.equal(layer.quant_method.restore(layer).dequantize(), weight)
        assert torch.equal(dense(folder, Q), weight)
        x = torch.randn(3, 256)
        assert relative(run(model, Q, x), x @ weight.T) < 1e-5
        model.save_pretrained(tmp_path / "saved")
        again = load(tmp_path / "saved")
        assert plans(again)[Q].scheme == "uint4[1x128]:zero:act-order"
        assert torch.equal(logits(again), logits(model))


def test_s37_tensors_decide_against_both_lists_with_a_note_each(tmp_path):
    only = [["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]]
    block = {**GPTQ, "modules_in_block_to_quantize": only}
    tensors = integer_llama(names=[name for name in LINEARS if name != UP])
    model = load(write(tmp_path, tensors, block))
    found = plans(model)
    assert {name for name in LINEARS if found[name].decision == "unquantized"} == {UP}
    notes = [note for note in model.quantdock_plan.notes if "the stored tensors decide" in note]
    assert len(notes) == 5  # q, k, v, o and up
    assert quantdock.explain(tmp_path, platform=CPU).totals.quantized == 6


@pytest.mark.parametrize(("method", "block"), [("gptq", GPTQ), ("awq", AWQ)])
@pytest.mark.parametrize("rows", [1, 33])
def test_s46_a_bias_is_added_once(method, block, rows):
    parts = packed(torch.zeros(128, 256), method)
    bias = torch.full((128,), 100.0)
    layer = make_layer(block, 256, [parts], name=method, bias=bias, sizes=[128])
    assert torch.equal(layer(torch.randn(rows, 256)), torch.full((rows, 128), 100.0))


def test_s48_the_tensors_of_a_weight_may_lie_in_any_files(tmp_path):
    tensors = integer_llama()
    expected = logits(load(write(tmp_path / "one", tensors, GPTQ)))
    parts = ("qweight", "qzeros", "scales", "g_idx")
    folder = write(tmp_path / "many", tensors, GPTQ)
    for order in itertools.islice(itertools.permutations(range(4)), 0, 24, 7):
        shards = {
            f"model-{order[i]}.safetensors": {n: t for n, t in tensors.items() if n.endswith(p)}
            for i, p in enumerate(parts)
        }
        taken = {name for shard in shards.values() for name in shard}
        shards["model-rest.safetensors"] = {n: t for n, t in tensors.items() if n not in taken}
        for old in folder.glob("*.safetensors*"):
            old.unlink()
        write_shards(folder, shards)
        assert torch.equal(logits(load(folder)), expected)


@pytest.mark.parametrize(("method", "block"), [("gptq", GPTQ), ("awq", AWQ)])
def test_s52_an_adapter_needs_no_dense_weight(tmp_path, method, block):
    base = load(write(tmp_path, integer_llama(method), block))
    layer = base.get_submodule(K)
    assert (layer.in_features, layer.out_features) == (256, 128)
    assert layer.weight.device.type == "cpu" and base.dtype == torch.float32
    a, b, x = torch.randn(8, 256), torch.randn(128, 8), torch.randn(4, 256)
    term = (x @ a.T) @ b.T * 2
    assert torch.allclose(run(base, K, x) + term - run(base, K, x), term, atol=1e-3)


def damaged(kind):
    """Return the tensors and the block of a file that is wrong in one way."""
    tensors, block = integer_llama(), dict(GPTQ)
    if kind == "bits":
        block["bits"] = 8
    elif kind == "group":
        block["group_size"] = 96
    elif kind == "scales":
        tensors[f"{Q}.scales"] = tensors[f"{Q}.scales"].to(torch.int32)
    elif kind == "width":
        tensors[f"{Q}.qzeros"] = tensors[f"{Q}.qzeros"][:, :30].contiguous()
    elif kind == "missing":
        del tensors[f"{Q}.qzeros"]
    elif kind == "index":
        tensors[f"{Q}.g_idx"][7] = 2
    elif kind == "negative":
        tensors[f"{Q}.g_idx"][7] = -1
    elif kind == "zero":
        tensors[f"{Q}.qzeros"][0, 0] += 1
    elif kind == "nan":
        tensors[f"{Q}.scales"][1, 3] = float("nan")
    return tensors, block


DAMAGE = {
    "bits": r"q_proj\.qzeros is \[2, 32\], not \[2, 64\].*they fit bits = 4, group_size = 128",
    "group": r"q_proj\.qweight is of K = 256, not a multiple of 96",
    "scales": r"q_proj\.scales is int32, not float16",
    "width": r"q_proj\.qzeros is \[2, 30\], not \[2, 32\]",
    "missing": r"missing.*q_proj\.qzeros|q_proj\.qzeros",
    "index": r"column 7 is in group 2, groups are 0 to 1",
    "negative": r"column 7 is in group -1, groups are 0 to 1",
    "zero": r"1 of 512 zero points are not 8, though sym = True",
    "nan": r"1 of 512 NaN",
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("quantization", [None, "none"])
def test_damage_is_an_error_with_names_and_numbers(tmp_path, kind, quantization):
    folder = write(tmp_path, *damaged(kind))
    with pytest.raises((LoadError, ConfigError), match=DAMAGE[kind]):
        load(folder, quantization)


@pytest.mark.parametrize("kind", DAMAGE)
def test_s31_damage_leaves_a_loaded_model_as_it_was(tmp_path, kind):
    folder = write(tmp_path / "good", integer_llama(), GPTQ)
    model = load(folder)
    before = logits(model)
    bad = write(tmp_path / "bad", *damaged(kind))
    with pytest.raises(QuantDockError):
        quantdock.reload(model, bad)
    assert torch.equal(logits(model), before)
    quantdock.reload(model, folder)
    assert torch.equal(logits(model), before)


def test_a_plan_shows_damage_that_headers_show(tmp_path):
    for kind in ("bits", "group", "scales", "width", "missing"):
        plan = quantdock.explain(write(tmp_path / kind, *damaged(kind)), platform=CPU)
        told = [layer.because for layer in plan.layers if layer.decision == "error"]
        assert told or any("loading would stop: qzeros is missing" in w for w in plan.warnings)


def test_asked_by_name_the_repacked_path_is_refused_where_no_kernel_repacks(tmp_path):
    folder = write(tmp_path, integer_llama(), GPTQ)
    with pytest.raises(QuantDockError, match="no kernel on cpu:generic repacks anything"):
        quantdock.explain(folder, platform=CPU, quantization="gptq_marlin")
    for asked in (None, "gptq", "auto_gptq"):
        assert quantdock.explain(folder, platform=CPU, quantization=asked).method == "gptq"
