"""Readers of a mixed checkpoint: which one a layer has, and what is asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import torch

from quantdock.configs.auto_round import AutoRoundConfig
from quantdock.configs.matcher import Entry, Match
from quantdock.configs.mixed_checkpoint import (
    Fp8Layers,
    IntegerLayers,
    MixedCheckpointConfig,
    ReaderCache,
)
from quantdock.configs.modelopt import ModelOptConfig
from quantdock.configs.quark import QuarkConfig
from quantdock.errors import ConfigError
from quantdock.formats import parse_spec
from quantdock.methods.cut import Cut
from quantdock.methods.slot import Slot
from quantdock.schemes import LayerFacts, Scheme, StoredTensor, parse_scheme
from third_party import block_of, decode_part, decoded_layers

UP = "model.layers.0.mlp.up_proj"


class Rows(IntegerLayers):
    name = "toy"

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        return (Slot(name="weight", shapes=((n, k),), dtypes=("int8",)),)

    def decode(self, scheme: Scheme, stored: Sequence[Mapping[str, Any]], facts: LayerFacts) -> Any:
        return scheme


class Floats(Fp8Layers):
    name = "toy"


class Toy(MixedCheckpointConfig):
    name = "toy"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        raise NotImplementedError

    def executed(self, scheme: Scheme) -> Scheme:
        return scheme.weight_only() if scheme.is_static else scheme


ROWS = Rows(parse_scheme("int8[1x*]"), "the toy says so")
STATIC = Rows(parse_scheme("int8[1x*] x int8[*x*]"), "static")
FLOATS = Floats(parse_spec("fp8_e4m3[*x*]"), None, "floats")


def entry(text: str, value: Any) -> Entry[Any]:
    return Entry(text=text, source=f"entry {text}", value=value)


def toy(usual: Any = ROWS, **options: Any) -> Toy:
    return Toy(Match(value=usual, source="all layers"), **options)


def scheme(made: Toy, prefix: str, **facts: Any) -> str:
    return str(made.scheme_for(LayerFacts(prefix=prefix, **facts)).scheme)


def test_a_layer_has_the_reader_of_its_name_then_class_then_all() -> None:
    made = toy(by_name=[entry("*.down_proj", FLOATS)], by_class=[entry("Conv1D", STATIC)])
    assert scheme(made, "a.down_proj", class_names=("Conv1D",)) == "fp8_e4m3[*x*]"
    assert scheme(made, UP) == "int8[1x*]"
    assert made.readers == (ROWS, FLOATS, STATIC)
    facts = LayerFacts(prefix="a.down_proj")
    assert made.reader_of(facts) is FLOATS
    assert made.reader_of(LayerFacts(prefix="a.up_proj")) is ROWS
    assert [slot.name for slot in made.slots(parse_scheme("fp8_e4m3[*x*]"), 8, 8, facts)] == [
        "weight", "weight_scale", "input_scale"
    ]  # fmt: skip


def test_a_platforms_config_changes_what_every_reader_executes() -> None:
    made = toy(by_name=[entry("*.down_proj", STATIC)])
    assert scheme(made, "a.down_proj") == "int8[1x*]"


def test_nothing_is_quantized_that_nothing_names() -> None:
    made = toy(None, by_name=[entry("model.layers.0", ROWS)])
    assert scheme(made, UP) == "int8[1x*]"
    other = made.scheme_for(LayerFacts(prefix="model.layers.1.mlp.up_proj"))
    assert (other.kind, other.source) == ("unquantized", "all layers")
    stored = {"weight": StoredTensor(dtype="int8", shape=(8, 8))}
    facts = LayerFacts(prefix="model.layers.1.mlp.up_proj", stored=stored)
    assert made.scheme_for(facts).kind == "quantized"
    assert made.notes() == (
        "model.layers.*.mlp.up_proj is stored with weight, though all layers leaves it out; "
        "the stored tensors decide",
    )


def test_headers_are_compared_with_the_tensors_of_the_reader() -> None:
    stored = {"weight": StoredTensor(dtype="int32", shape=(8, 8))}
    decision = toy().scheme_for(LayerFacts(prefix=UP, stored=stored))
    assert decision.error
    assert decision.because == f"{UP}.weight is int32, not int8, as int8[1x*] [8, 8] has"


def test_every_entry_that_matches_nothing_is_told() -> None:
    made = toy(
        by_name=[entry("a", ROWS)],
        by_class=[entry("Conv1D", ROWS)],
        ignored=[Entry(text="b", source="entry b", value=None)],
    )
    scheme(made, UP)
    assert made.unmatched() == ("entry b", "entry a", "entry Conv1D")


def test_equal_blocks_have_one_reader() -> None:
    cache = ReaderCache(lambda block, source: Rows(parse_scheme(block["scheme"]), source))
    first = cache.reader({"scheme": "int8[1x*]"}, "a")
    assert cache.reader({"scheme": "int8[1x*]"}, "b") is first
    assert cache.reader({"scheme": "int8[*x*]"}, "b") is not first


def test_readers_are_no_checkpoints_of_their_own() -> None:
    with pytest.raises(ConfigError, match="reads some layers of a toy checkpoint"):
        Rows.from_config({})


FOLDERS = {
    AutoRoundConfig: ("autoround-native-w4-g32",),
    ModelOptConfig: ("modelopt-int4-awq", "modelopt-int8-sq", "modelopt-int8-wo", "modelopt-fp8"),
    QuarkConfig: ("quark-int8", "quark-int4-wo-32", "quark-uint4-wo-32"),
}


@pytest.mark.parametrize(
    ("kind", "folder"), [(kind, name) for kind, names in FOLDERS.items() for name in names]
)
def test_a_rank_has_its_part_of_the_weight_bit_for_bit(
    shared: Path, kind: Any, folder: str
) -> None:
    """Halves, and columns cut inside of a group."""
    path = shared / "models" / folder
    config = kind.from_config(block_of(path))
    for layer in decoded_layers(config, path):
        n, k = layer.weight.shape
        whole = layer.weight.dense()
        for rows, columns in (
            (range(n // 2, n), range(k)),
            (range(n), range(k // 2, k)),
            (range(n), range(k // 2 + 16, k)),
        ):
            cut = Cut(n=n, k=k, rows=rows, columns=columns)
            part = decode_part(config, layer.scheme, layer.tensors, layer.facts, cut)
            expected = whole[rows.start : rows.stop, columns.start : columns.stop]
            assert torch.equal(part.dense(), expected)
            assert (part.input_scale is None) is not layer.scheme.is_static
