"""Conversions from end to end: what is written, what survives an interruption, what is refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from quantdock.convert import shard_file
from quantdock.convert.conversion import plan_conversion
from quantdock.convert.workspace import MANIFEST
from quantdock.errors import CheckpointError, TargetError
from quantdock.formats import parse_spec
from quantdock.numerics import quantize
from toy_files import edit_config
from toy_llama import LINEARS, UP, llama

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def convert(source, target, to="fp8_per_channel", advance=lambda num_bytes: None, **options):
    return plan_conversion(source, target, to, **options).run(advance)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def stop_after(count):
    """Return an advance that is interrupted, as by Ctrl-C, when it is told the ``count``th time."""
    told = []

    def advance(num_bytes):
        told.append(num_bytes)
        if len(told) == count:
            raise KeyboardInterrupt

    return advance


@pytest.mark.parametrize(
    ("to", "tile", "scale"),
    [
        ("fp8_per_tensor", "*x*", "weight_scale"),
        ("fp8_per_channel", "1x*", "weight_scale"),
        ("fp8_per_block", "128x128", "weight_scale_inv"),
    ],
)
def test_weights_are_quantized_and_all_else_is_copied(plain, tmp_path, to, tile, scale):
    report = convert(plain, tmp_path / "out", to)
    before, after = llama(), load_file(report.target / "model.safetensors")
    assert after.keys() == before.keys() | {f"{name}.{scale}" for name in LINEARS}
    for name, tensor in before.items():
        if name.removesuffix(".weight") in LINEARS:
            made = quantize(tensor, parse_spec(f"fp8_e4m3[{tile}]"))
            tensor = made.codes
            stored = after[f"{name.removesuffix('.weight')}.{scale}"]
            assert torch.equal(stored, made.scale.reshape(stored.shape))
        assert after[name].dtype == tensor.dtype and torch.equal(bits(after[name]), bits(tensor))
    assert (report.num_layers, report.num_files, report.num_kept) == (len(LINEARS), 1, 0)
    assert report.bytes_after < report.bytes_before


def test_the_folder_is_complete_and_says_what_it_is(plain, tmp_path):
    edit_config(plain, custom={"kept": [1, "ü"]})
    target = convert(plain, tmp_path / "out", "fp8_per_block").target
    assert sorted(contents(target)) == ["config.json", "model.safetensors", "tokenizer.json"]
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    before = json.loads((plain / "config.json").read_text(encoding="utf-8"))
    assert config.pop("quantization_config") == {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head"],
    }
    assert config == before
    assert list(tmp_path.glob("*.partial")) == []


def test_a_report_has_the_warnings(plain, tmp_path):
    report = convert(plain, tmp_path / "out", "mxfp8", ignore=["lm_hea"])
    assert report.warnings == ("ignore[0] = 'lm_hea' matches no layer; did you mean lm_head?",)


def test_shards_are_mirrored_or_limited(sharded, tmp_path):
    target = convert(sharded, tmp_path / "mirrored").target
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert {FIRST, SECOND} == set(index["weight_map"].values()) == set(contents(target)) - {
        "config.json", "tokenizer.json", "model.safetensors.index.json"
    }  # fmt: skip
    limited = convert(sharded, tmp_path / "limited", max_shard_bytes=200_000)
    assert limited.num_files > 3
    index = json.loads((limited.target / "model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        assert name in load_file(limited.target / file)


def test_an_interrupted_run_goes_on_and_ends_in_the_same_bytes(sharded, tmp_path):
    whole = convert(sharded, tmp_path / "whole").target
    target, partial = tmp_path / "out", tmp_path / "out.partial"
    with pytest.raises(KeyboardInterrupt):
        convert(sharded, target, advance=stop_after(6))
    assert not target.exists()
    assert sorted(contents(partial)) == [FIRST, f"{SECOND}.unfinished", MANIFEST]
    before = (partial / FIRST).stat().st_mtime_ns
    told = []
    report = convert(sharded, target, advance=told.append)
    assert report.num_kept == 1
    assert report.notes[0] == f"going on in {partial}"
    assert (target / FIRST).stat().st_mtime_ns == before
    assert sum(told) == plan_conversion(sharded, tmp_path / "x", "mxfp8").num_bytes
    assert contents(target) == contents(whole)


def test_a_killed_process_leaves_work_that_is_taken_up(sharded, tmp_path):
    code = (
        "import os, sys; from quantdock.convert.conversion import plan_conversion; told = []\n"
        "def advance(n):\n    told.append(n)\n    len(told) == 6 and os._exit(9)\n"
        "plan_conversion(sys.argv[1], sys.argv[2], 'fp8_per_channel').run(advance)"
    )
    target = tmp_path / "out"
    ended = subprocess.run([sys.executable, "-c", code, str(sharded), str(target)], check=False)
    assert ended.returncode == 9 and not target.exists()
    assert convert(sharded, target).num_kept == 1
    assert contents(target) == contents(convert(sharded, tmp_path / "whole").target)


@pytest.mark.parametrize("damage", ["truncated", "empty", "other"])
def test_a_finished_file_that_was_damaged_is_written_again(sharded, tmp_path, damage):
    target = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        convert(sharded, target, advance=stop_after(6))
    path = tmp_path / "out.partial" / FIRST
    content = path.read_bytes()
    path.write_bytes({"truncated": content[:-7], "empty": b"", "other": content[::-1]}[damage])
    assert convert(sharded, target).num_kept == 0
    assert (target / FIRST).read_bytes() == content


def test_other_options_and_another_input_start_anew(sharded, tmp_path):
    target = tmp_path / "out"
    for change in ("options", "input"):
        with pytest.raises(KeyboardInterrupt):
            convert(sharded, target, advance=stop_after(6))
        if change == "options":
            report = convert(sharded, target, "fp8_per_tensor")
            assert "to was 'fp8_per_channel' and is 'fp8_per_tensor'" in report.notes[0]
        else:
            os.utime(sharded / SECOND, ns=(1, 1))
            report = convert(sharded, target)
            assert f"{SECOND} of the input has changed" in report.notes[0]
        assert report.num_kept == 0
        shutil.rmtree(target)


def test_an_input_that_changes_meanwhile_is_refused(sharded, tmp_path):
    def touch(num_bytes):
        os.utime(sharded / FIRST, ns=(1, 1))

    with pytest.raises(CheckpointError, match=rf"changed while[\s\S]*{FIRST}"):
        convert(sharded, tmp_path / "out", advance=touch)
    assert not (tmp_path / "out").exists()


def test_no_room_is_told_before_a_byte_is_written(sharded, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(TargetError, match=r"it needs .* kB, and 1\.0 kB are free"):
        convert(sharded, tmp_path / "out")
    assert sorted(contents(tmp_path / "out.partial")) == [MANIFEST]


def test_a_disk_that_fills_up_keeps_what_is_finished(sharded, tmp_path, monkeypatch):
    synced = []

    def fsync(handle):
        synced.append(handle)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shard_file.os, "fsync", fsync)
    with pytest.raises(TargetError, match=r"The disk is full: [\s\S]*finished files are kept"):
        convert(sharded, tmp_path / "out")
    monkeypatch.undo()
    assert convert(sharded, tmp_path / "out").num_kept == 1


@pytest.mark.parametrize("way", ["same", "link"])
def test_the_input_is_never_written_over(plain, tmp_path, way):
    (tmp_path / "link").symlink_to(plain)
    before = contents(plain)
    with pytest.raises(TargetError, match="is the folder that is to be converted"):
        convert(plain, {"same": plain, "link": tmp_path / "link"}[way])
    assert contents(plain) == before


def test_names_of_any_script_and_links_work(plain, tmp_path):
    source = plain.rename(tmp_path / "модель 模型 ü")
    (tmp_path / "Ziel ✓").symlink_to(tmp_path / "real é")
    report = convert(source, tmp_path / "Ziel ✓", "mxfp8")
    assert report.target == tmp_path / "real é"
    assert f"{UP}.weight_scale" in load_file(tmp_path / "Ziel ✓" / "model.safetensors")
