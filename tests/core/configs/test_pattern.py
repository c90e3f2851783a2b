"""Entries as dialects read them."""

from __future__ import annotations

import pytest

from quantdock.configs.pattern import CLASSES, COMPONENTS, ROOTED, Dialect, core_depth, read_pattern
from quantdock.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("model.layers.1.mlp", ("model", "layers", "1", "mlp")),
        ("lm_head.", ("lm_head",)),
        (".lm_head", ("lm_head",)),
        ("/model/layers/0/mlp/", ("model", "layers", "0", "mlp")),
        (" lm_head ", ("lm_head",)),
        ("model.layers.0.mlp.gate.weight", ("model", "layers", "0", "mlp", "gate")),
        # A bias on the list says nothing of the weight beside it.
        ("model.layers.0.q_proj.bias", ("model", "layers", "0", "q_proj", "bias")),
        ("", ("",)),
    ],
)
def test_plain_entry_is_a_run_of_components(text: str, parts: tuple[str, ...]) -> None:
    pattern = read_pattern(text, COMPONENTS)
    assert pattern.parts == parts
    assert pattern.anywhere
    assert pattern.accepts("anything")


def test_all_below_a_name_is_a_run_at_the_beginning() -> None:
    pattern = read_pattern("model.layers.1.*", COMPONENTS)
    assert (pattern.parts, pattern.anywhere) == (("model", "layers", "1"), False)


@pytest.mark.parametrize(
    ("parts", "depth"),
    [
        (["model", "layers", "0"], 1),
        (["language_model", "model", "layers"], 2),
        (["model", "language_model"], 1),
        (["lm_head"], 0),
        (["model"], 0),
        (["vision", "model"], 0),
    ],
)
def test_core_begins_after_the_wrappers(parts: list[str], depth: int) -> None:
    assert core_depth(parts) == depth


@pytest.mark.parametrize(
    ("glob", "name", "expected"),
    [
        ("model.layers.0*", "model.layers.0.mlp.up_proj", True),
        ("model.layers.1*", "model.layers.10.mlp", True),
        ("model.layers.?.mlp", "model.layers.10.mlp", False),
        ("model.layers.[01].mlp", "model.layers.1.mlp.up_proj", True),
        ("model.layers.*.self_attn", "model.layers.3.self_attn.q_proj", True),
        ("model.layers.*.self_attn", "model.layers.3.self_attn_norm", False),
        ("model.layers.*.self_attn", "layers.3.self_attn", True),
        ("layers.*.self_attn", "language_model.model.layers.3.self_attn", True),
        ("model.visual*", "visual.blocks.0", True),
        ("visual*", "model.visual.blocks.0", True),
        ("model.*.mlp", "layers.0.mlp", False),  # taking "model" off would leave "*.mlp"
        ("*.mlp.shared_expert.*", "model.layers.0.mlp.shared_expert.up_proj", True),
        ("*.mlp.shared_expert.*", "model.layers.0.mlp.shared_expert", True),
        ("*.mlp.shared_expert.*", "model.layers.0.mlp.shared_expert_gate", False),
        ("self_attn.q*", "model.layers.0.self_attn.q_proj", False),  # the whole name counts
    ],
)
def test_glob_is_compared_with_the_whole_name(glob: str, name: str, expected: bool) -> None:
    assert read_pattern(glob, COMPONENTS).accepts(name) is expected


FULL = Dialect(full_regex=True)


@pytest.mark.parametrize(
    ("text", "dialect", "name", "expected"),
    [
        ("re:.*self_attn", CLASSES, "model.layers.0.self_attn.q_proj", True),
        ("re:.*self_attn", FULL, "model.layers.0.self_attn.q_proj", False),
        ("re:.*self_attn.*", FULL, "model.layers.0.self_attn.q_proj", True),
        ("re:self_attn", CLASSES, "model.layers.0.self_attn.q_proj", False),
        (r"re:model\.layers\.1\..*", CLASSES, "model.layers.10.mlp", False),
        (r"re:model\.layers\.1\..*", CLASSES, "language_model.model.layers.1.mlp", True),
        (r"re:layers\.1\..*", CLASSES, "model.layers.1.mlp", True),
        (r"re:^(?!model\.layers\.).*", CLASSES, "model.layers.1.mlp", False),
        (r"re:^(?!model\.layers\.).*", CLASSES, "lm_head", True),
    ],
)
def test_regex_is_prefix_or_full(text: str, dialect: Dialect, name: str, expected: bool) -> None:
    assert read_pattern(text, dialect).accepts(name) is expected


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (r"re:model\.layers\.1\.mlp.*", ("layers", "1")),
        (r"re:^visual\.blocks", ("visual",)),
        (r"re:lm_heads?", ()),
        (r"re:vision\.?tower\.x", ()),
        (r"re:model.layers.1", ()),  # a dot stands for any character
        (r"re:vision\.a|lm_head", ()),
        (r"re:.*lm_head", ()),
    ],
)
def test_literal_beginning_of_a_regex_is_read_off(text: str, parts: tuple[str, ...]) -> None:
    assert read_pattern(text, ROOTED).parts == parts


def test_broken_regex_names_its_place() -> None:
    with pytest.raises(ConfigError, match=r"ignore\[3\] = .* is no regular expression") as caught:
        read_pattern("re:layers.(", CLASSES, "ignore[3] = 're:layers.('")
    assert "layers.(" in str(caught.value)
