"""Files of the field: S28, S29, S48 - cut short, missing, in any order."""

from __future__ import annotations

import itertools

import pytest
import torch
from safetensors.torch import save_file

import quantdock
import toy_llava
from quantdock.cli.app import run as run_cli
from quantdock.errors import CheckpointError, LoadError
from toy_llama import (
    BLOCK,
    LINEARS,
    OUT,
    Q,
    llama,
    load,
    write,
    write_json,
    write_shards,
)

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def two_shards(tmp_path):
    """Return an fp8 checkpoint of two shards."""
    tensors = llama("128x128")
    names = list(tensors)
    folder = write(tmp_path / "model", tensors, BLOCK)
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    write_shards(
        folder,
        {f: {n: tensors[n] for n in half} for f, half in zip((FIRST, SECOND), halves, strict=True)},
    )
    return folder


def _never(modules):
    raise AssertionError("tensors were read")


def refused(folder, capsys, *texts):
    """Check that loading, explaining and the command line refuse ``folder`` in these words."""

    for call in (lambda: load(folder, track=_never), lambda: quantdock.explain(folder)):
        with pytest.raises(CheckpointError) as caught:
            call()
        for text in texts:
            assert text in str(caught.value)
    assert run_cli(["generate", str(folder), "x"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err and texts[0] in err


def test_s28_a_shard_cut_short_is_named_with_both_sizes(two_shards, capsys):
    path = two_shards / SECOND
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-100])
    sizes = f"{size:,} bytes expected, the file has {size - 100:,}"
    refused(two_shards, capsys, SECOND, "is cut short", sizes)


def test_s28_a_shard_cut_inside_its_header(two_shards, capsys):
    path = two_shards / SECOND
    end = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    path.write_bytes(path.read_bytes()[:50])
    sizes = f"the header ends at byte {end:,}, the file has 50 bytes"
    refused(two_shards, capsys, SECOND, "is cut off inside its header", sizes)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n", "a Git-LFS pointer"),
        ("<!DOCTYPE html><html>Not found</html>", "an HTML page"),
        ("Entry not found", "is not a safetensors file"),
    ],
)
def test_s28_something_else_under_the_name_of_a_shard(two_shards, capsys, text, what):
    (two_shards / FIRST).write_text(text)
    refused(two_shards, capsys, FIRST, what)


def test_s28_a_file_that_shrinks_after_it_was_opened_is_an_error_and_no_crash(two_shards):
    path = two_shards / SECOND

    def cut(modules):
        path.write_bytes(path.read_bytes()[:-1000])
        return modules

    with pytest.raises(CheckpointError, match=r"ends inside tensor[\s\S]*changed after it was"):
        load(two_shards, track=cut)


def test_s29_a_shard_that_is_not_there(two_shards, capsys):
    (two_shards / SECOND).unlink()
    refused(two_shards, capsys, SECOND, "1 of 2 files that are not there")


def test_s29_a_tensor_that_its_shard_lacks(two_shards, capsys):
    name = f"{OUT}.weight_scale_inv"
    tensors = {n: t for n, t in llama("128x128").items() if n != name}
    (two_shards / "model.safetensors.index.json").unlink()
    write_shards(two_shards, {FIRST: tensors})
    weight_map = {n: FIRST for n in (*tensors, name)}
    write_json(two_shards / "model.safetensors.index.json", {"weight_map": weight_map})
    refused(two_shards, capsys, name, f"is not in {FIRST}")


def test_s29_the_index_wins_over_a_file_beside_it(two_shards):
    wrong = {f"{Q}.weight": torch.zeros(256, 256, dtype=torch.bfloat16)}
    expected = load(two_shards).get_submodule(Q).weight.view(torch.uint8)
    save_file(wrong, two_shards / "old.safetensors")
    model = load(two_shards)
    assert torch.equal(model.get_submodule(Q).weight.view(torch.uint8), expected)
    (warning,) = [w for w in model.quantdock_plan.warnings if "old.safetensors" in w]
    assert "its copies are ignored" in warning and f"{Q}.weight" in warning


@pytest.mark.parametrize("scope", ["", "text_config"])
def test_s29_a_sub_model_that_is_wholly_missing(tmp_path, scope):
    """All is named at once, also where the block would make its layers quantized ones."""
    tensors = {n: t for n, t in toy_llava.tensors("128x128").items() if "vision_tower" not in n}
    blocks = (None, BLOCK) if scope else (BLOCK, None)
    with pytest.raises(LoadError, match=r"\d+ tensors? of the model (are|is) in no file") as caught:
        load(toy_llava.write(tmp_path, tensors, *blocks))
    assert all(name.startswith("model.vision_tower.") for name in caught.value.names)
    stored = [name for name in toy_llava.tensors() if name.startswith("vision_tower")]
    assert len(caught.value.names) == len(stored) + (0 if scope else 6)  # scales of 6 layers
    assert f"and {len(caught.value.names) - 10} more" in str(caught.value)


def test_s29_a_quantized_layer_that_is_missing_is_named_before_anything_is_read(tmp_path):
    tensors = {n: t for n, t in llama("128x128").items() if not n.startswith(Q)}
    del tensors["model.norm.weight"]
    with pytest.raises(LoadError, match="3 tensors of the model are in no file") as caught:
        load(write(tmp_path, tensors, BLOCK), track=_never)
    assert caught.value.names == (f"{Q}.weight", f"{Q}.weight_scale_inv", "model.norm.weight")


def test_s48_parts_of_one_weight_may_lie_in_any_files_in_any_order(tmp_path):
    tensors = llama("128x128")
    codes = {f"{name}.weight": tensors.pop(f"{name}.weight") for name in LINEARS}
    scales = {
        f"{name}.weight_scale_inv": tensors.pop(f"{name}.weight_scale_inv") for name in LINEARS
    }
    expected = None
    for index, order in enumerate(itertools.permutations((codes, scales, tensors))):
        folder = write(tmp_path / str(index), {}, BLOCK)
        shards = {f"part-{i}.safetensors": part for i, part in enumerate(order)}
        write_shards(folder, shards)
        state = load(folder).state_dict()
        expected = expected or state
        assert list(state) == list(expected)
        for name, tensor in state.items():
            assert torch.equal(tensor.view(torch.uint8), expected[name].view(torch.uint8))


def test_s48_files_without_an_index_are_read_together(tmp_path):
    tensors = llama("128x128")
    folder = write(tmp_path, tensors, BLOCK)
    (folder / "model.safetensors").unlink()
    scales = {n: tensors.pop(n) for n in list(tensors) if n.endswith("scale_inv")}
    save_file(tensors, folder / "a.safetensors")
    save_file(scales, folder / "b.safetensors")
    assert load(folder).quantdock_plan.totals.quantized == len(LINEARS)
