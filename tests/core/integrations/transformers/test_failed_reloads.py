"""Reloads that fail, for reasons that headers show or only values do: the old weights serve on."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import quantdock
from model_outputs import logits
from quantdock.errors import CheckpointError, LoadError, QuantDockError
from quantdock.integrations.transformers.all_or_none import all_or_none
from quantdock.layers import MergedStore, ParallelGroup
from toy_files import edit_tensors, write_block_checkpoint

KEPT = "The model keeps the weights it had."
LAST = "model.layers.3.mlp.up_proj"


def scales_of(tensors, prefix):
    return next(name for name in tensors if name.startswith(prefix) and "scale" in name)


def poison(tensors):
    """Change an early layer for good, and a late one into what only its values show."""
    early = scales_of(tensors, "model.layers.0.self_attn.q_proj.")
    tensors[early] = (tensors[early].float() * 2).to(tensors[early].dtype)
    late = scales_of(tensors, LAST)
    tensors[late] = tensors[late].clone()
    tensors[late].view(-1)[0] = torch.nan


def with_bad_index(tensors):
    tensors["model.layers.0.self_attn.q_proj.scales"] *= 2
    tensors[f"{LAST}.g_idx"][5] = 99


def with_whole_number_norm(tensors):
    tensors["model.layers.0.self_attn.q_proj.scales"] *= 2
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)


@pytest.fixture
def damaged(shared, tmp_path):
    """Return a function that copies a shared model and edits its tensors."""

    def make(name, edit):
        folder = shutil.copytree(shared / "models" / name, tmp_path / "damaged")
        for path in (folder, *folder.iterdir()):
            path.chmod(0o755)
        edit_tensors(folder, edit)
        return folder

    return make


def assert_refused(model, folder, match, kind=LoadError):
    before = logits(model)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    kernels = {name: str(getattr(m, "quant_method", "")) for name, m in model.named_modules()}
    with pytest.raises(kind, match=match) as caught:
        quantdock.reload(model, folder)
    assert KEPT in str(caught.value)
    after = model.state_dict()
    assert state.keys() == after.keys()
    for name, tensor in state.items():
        assert torch.equal(after[name].view(torch.uint8), tensor.view(torch.uint8)), name
    assert kernels == {n: str(getattr(m, "quant_method", "")) for n, m in model.named_modules()}
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize(
    "name",
    ["gptq-w4-g64-desc", "awq-w4-g32", "ct-w8a8-int8", "ct-w4a16-asym-g128", "modelopt-int4-awq"],
)
def test_a_scale_that_is_nan_in_a_late_layer_changes_no_layer(shared, damaged, name, merge):
    model = quantdock.load(shared / "models" / name, device="cpu", dtype="bfloat16", merge=merge)
    assert_refused(model, damaged(name, poison), match="scale")
    quantdock.reload(model, shared / "models" / name)


@pytest.mark.parametrize(
    ("edit", "match"),
    [(with_bad_index, "g_idx"), (with_whole_number_norm, "model.norm.weight is int8")],
)
def test_an_index_of_no_group_or_a_plain_tensor_of_codes(shared, damaged, edit, match):
    name = "gptq-w4-g64-desc"
    model = quantdock.load(shared / "models" / name, device="cpu", dtype="bfloat16")
    assert_refused(model, damaged(name, edit), match=match)


def test_a_layer_whose_kernel_was_chosen_anew_keeps_the_old_one(shared, damaged):
    """A stored index in order takes a layer out of act-order; the failure comes after it."""
    name = "gptq-w4-g64-desc"

    def edit(tensors):
        index = tensors["model.layers.0.self_attn.q_proj.g_idx"]
        index.copy_(torch.arange(len(index)) // 64)
        poison(tensors)

    model = quantdock.load(shared / "models" / name, device="cpu", dtype="bfloat16")
    layer = model.get_submodule("model.layers.0.self_attn.q_proj")
    kernel, problem = layer.quant_method.kernel, layer.quant_method.problem
    assert_refused(model, damaged(name, edit), match="scale")
    assert layer.quant_method.kernel is kernel and layer.quant_method.problem is problem


@pytest.mark.parametrize("name", ["gptq-mixtral-w4-g32", "ct-qwen3moe-w8a8"])
def test_one_expert_that_is_damaged_changes_no_expert(shared, damaged, name):
    def edit(tensors):
        found = [n for n in tensors if ".experts." in n and n.rpartition(".")[2].find("scale") >= 0]
        tensors[found[0]] = tensors[found[0]] * 2
        tensors[found[-1]] = tensors[found[-1]].clone()
        tensors[found[-1]].view(-1)[-1] = torch.nan

    model = quantdock.load(shared / "models" / name, device="cpu")
    assert_refused(model, damaged(name, edit), match="scale")


def test_a_second_shard_that_is_cut_short(shared, damaged):
    name = "gptq-w4-g64-desc"
    model = quantdock.load(shared / "models" / name, device="cpu", dtype="bfloat16")
    folder = damaged(name, lambda tensors: tensors["model.norm.weight"].mul_(2))
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    for number, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), 1):
        own = {name: tensors[name] for name in part}
        save_file(own, folder / f"model-0000{number}-of-00002.safetensors", {"format": "pt"})
    second = folder / "model-00002-of-00002.safetensors"
    second.write_bytes(second.read_bytes()[:-1000])
    assert_refused(model, folder, match="model-00002", kind=QuantDockError)


def test_scales_of_keys_that_are_not_sound(make_toy, tmp_path):
    folder = write_block_checkpoint(make_toy(), tmp_path / "block")
    scales = {
        f"model.layers.{i}.self_attn.{kind}_proj.{kind}_scale": torch.tensor(0.5)
        for i in range(2)
        for kind in "kv"
    }
    edit_tensors(folder, lambda tensors: tensors.update(scales))
    model = quantdock.load(folder, device="cpu", kv_cache="fp8")
    broken = shutil.copytree(folder, tmp_path / "broken")
    bad = {"model.layers.1.self_attn.k_proj.k_scale": torch.tensor([1.0, 2.0, 3.0])}
    edit_tensors(broken, lambda tensors: tensors.update(bad))
    cache = model.quantdock_kv_cache
    assert_refused(model, broken, match="k_scale")
    assert model.quantdock_kv_cache is cache


def test_merged_stores_reload_though_their_kernel_stacks_tensors(shared):
    """The tensors of a store may have three dimensions, as experts have; it is none."""
    for name in ("modelopt-int4-awq", "awq-w4-g32"):
        folder = shared / "models" / name
        model = quantdock.load(folder, device="cpu", dtype="bfloat16", merge=True)
        assert any(isinstance(m, MergedStore) for m in model.modules())
        before = logits(model)
        quantdock.reload(model, folder)
        assert torch.equal(logits(model), before)


def test_files_that_fail_between_the_readings_are_told(make_toy):
    folder = make_toy()
    model = quantdock.load(folder, "fp8", device="cpu")
    file = folder / "model.safetensors"
    rounds = []

    def track(modules):
        rounds.append(1)
        for number, module in enumerate(modules):
            if len(rounds) == 2 and number == 8:
                file.write_bytes(file.read_bytes()[:500])
            yield module

    with pytest.raises(LoadError, match="stopped half-way: some layers have the new") as caught:
        quantdock.reload(model, folder, track)
    assert KEPT not in str(caught.value) and "do not use it" in str(caught.value)


class Ranks(ParallelGroup):
    """Two ranks, of which the other one's checks failed."""

    def all_reduce(self, x):
        return x + 1


def test_a_rank_fails_where_another_one_does():
    ranks = Ranks(rank=0, size=2)
    cpu = torch.device("cpu")
    with pytest.raises(LoadError, match="1 of 2 ranks cannot") as caught, all_or_none(ranks, cpu):
        pass
    assert caught.value.todo == KEPT
    with pytest.raises(CheckpointError, match="own") as caught, all_or_none(ranks, cpu):
        raise CheckpointError("own", todo="Do.")
    assert caught.value.todo == f"{KEPT} Do."
    with pytest.raises(OSError) as caught, all_or_none(ranks, cpu):
        raise OSError("disk")
    assert caught.value.__notes__ == [KEPT]
