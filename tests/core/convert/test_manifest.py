"""What a later run compares before it goes on."""

from __future__ import annotations

import json
import os

import pytest

from quantdock.checkpoint import open_checkpoint
from quantdock.convert.manifest import make_manifest
from quantdock.convert.request import read_request


def manifest(folder, to="mxfp8", **options):
    return make_manifest(open_checkpoint(folder), read_request(to, **options))


def stored(made):
    return json.loads(made.to_json())


def test_the_same_work_has_no_changes(sharded):
    choices = {"*.o_proj": "none"}
    old = stored(manifest(sharded, choices=choices))
    assert manifest(sharded, choices=choices).changes_since(old) == []
    assert list(old["files"]) == [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"to": "fp8_per_tensor"}, "to was 'mxfp8' and is 'fp8_per_tensor'"),
        ({"ignore": ["a"]}, "ignore was [] and is ['a']"),
        ({"choices": {"a": "none"}}, "choices was {} and is {'a': 'none'}"),
        ({"max_shard_bytes": 9}, "max_shard_bytes was None and is 9"),
    ],
)
def test_other_options_are_told(plain, options, text):
    assert manifest(plain, **options).changes_since(stored(manifest(plain))) == [text]


def test_another_input_is_told(plain, tmp_path):
    old = stored(manifest(plain))
    os.utime(plain / "model.safetensors", ns=(1, 1))
    assert manifest(plain).changes_since(old) == ["model.safetensors of the input has changed"]
    old = stored(manifest(plain))
    config = plain / "config.json"
    config.write_text(config.read_text() + " ")
    assert manifest(plain).changes_since(old) == ["config.json of the input has changed"]
    moved = plain.rename(tmp_path / "moved")
    assert f"the input was {plain}" in manifest(moved).changes_since(old)


def test_another_release_or_rubbish_starts_anew(plain):
    made = manifest(plain)
    assert made.changes_since({**stored(made), "version": "0.0.1"}) == [
        "it was begun with QuantDock 0.0.1"
    ]
    assert made.changes_since({})[0] == "it was begun with QuantDock of another kind"
