"""The one matcher: field cases of ignore lists, and a naive definition."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from time import process_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quantdock.configs.matcher import Entry, Matcher, entries
from quantdock.configs.pattern import CLASSES, COMPONENTS, ROOTED, WRAPPERS, Dialect
from quantdock.schemes import LayerFacts, StoredTensor


def ask(matcher: Matcher[None], *names: str) -> list[bool]:
    return [matcher.find(LayerFacts(prefix=name)) is not None for name in names]


def test_a_run_is_whole_components() -> None:
    matcher = Matcher(entries("ignored_layers", ["mlp.gate", "model.layers.1", "lm_head."]))
    names = ["model.layers.5.mlp.gate", "model.layers.5.mlp.gate_up_proj", "model.layers.10.x"]
    assert ask(matcher, *names) == [True, False, False]
    assert ask(matcher, "model.layers.1.self_attn.o_proj", "lm_head") == [True, True]


@pytest.mark.parametrize("dialect", [COMPONENTS, ROOTED])
@pytest.mark.parametrize("entry", ["model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj"])
@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.mlp.up_proj",
        "layers.0.mlp.up_proj",
        "language_model.model.layers.0.mlp.up_proj",
        "model.language_model.layers.0.mlp.up_proj",
    ],
)
def test_what_wraps_the_model_does_not_matter(dialect: Dialect, entry: str, name: str) -> None:
    assert ask(Matcher(entries("ignore", [entry]), dialect), name) == [True]


def test_name_of_one_tower_does_not_reach_into_another() -> None:
    matcher = Matcher(entries("ignore", ["model.layers.0.mlp"]))
    assert ask(matcher, "vision_tower.layers.0.mlp.fc1", "visual.layers.0.mlp") == [False, False]


def test_match_says_where_it_is_written() -> None:
    matcher = Matcher(entries("modules_to_not_convert", ["gate", "lm_head"]))
    match = matcher.find(LayerFacts(prefix="lm_head", kind="head"))
    assert match is not None
    assert match.source == "modules_to_not_convert[1] = 'lm_head'"
    assert match.conflict == ""


def test_unmatched_entries_are_told_without_norms_and_biases() -> None:
    listed = [
        "lm_head",
        "model.layers.0.input_layernorm",
        "model.layers.0.indexer.k_norm.bias",
        "x",
    ]
    matcher = Matcher(entries("ignore", [*listed, "lm_head.weight"]))
    assert matcher.unmatched() == (
        "ignore[0] = 'lm_head'",
        "ignore[3] = 'x'",
        "ignore[4] = 'lm_head.weight'",
    )
    assert ask(matcher, "lm_head") == [True]
    assert matcher.unmatched() == ("ignore[3] = 'x'",)  # every entry that fits counts as matched


def test_most_specific_entry_gives_the_value() -> None:
    listed = {
        "re:.*": "regex",
        "*": "glob",
        "model.layers.3.*": "layer",
        "mlp": "run",
        "model.layers.3.mlp.up_proj": "exact",
        "*.mlp.down*": "long glob",
    }
    matcher = Matcher(Entry(text=t, source=t, value=v) for t, v in listed.items())
    asked = ["mlp.up_proj", "mlp.gate_proj", "self_attn.o_proj"]
    found = [matcher.find(LayerFacts(prefix=f"model.layers.3.{name}")) for name in asked]
    assert [match and match.value for match in found] == ["exact", "layer", "layer"]
    other = [matcher.find(LayerFacts(prefix=f"model.layers.4.{name}")) for name in asked]
    assert [match and match.value for match in other] == ["run", "run", "glob"]
    head = matcher.find(LayerFacts(prefix="a.b.mlps.down"))
    assert head is not None and head.value == "glob"


def test_class_names_come_last() -> None:
    listed = entries("targets", ["Linear", "up_proj", "re:.*down_proj", "qkv_proj"])
    matcher = Matcher(listed, CLASSES)
    names = ("up_proj", "mlp.down_proj", "k_proj", "gate_proj")
    found = [matcher.find(LayerFacts(prefix=name)) for name in names]
    assert [match and match.source.partition(" = ")[0] for match in found] == [
        "targets[1]",
        "targets[2]",
        "targets[3]",
        "targets[0]",
    ]


def test_class_names_count_where_the_dialect_has_them() -> None:
    facts = LayerFacts(prefix="model.layers.0.mlp.up_proj", class_names=("Linear", "Module"))
    assert Matcher(entries("targets", ["Linear"]), CLASSES).find(facts) is not None
    assert Matcher(entries("targets", ["Linear"]), COMPONENTS).find(facts) is None
    assert Matcher(entries("targets", ["Embedding"]), CLASSES).find(facts) is None


class TestRenamedModules:
    """S02: the file's names and the runtime's differ."""

    exclude = (
        "model.language_model.layers.0.self_attn.q_proj",
        "model.visual.blocks.0.attn.qkv",
        "lm_head",
    )
    override = Entry(
        text="model.language_model.layers.1.mlp.down_proj", source="layer_quant_config", value="fp8"
    )

    def test_runtime_names_find_entries_in_checkpoint_names(self) -> None:
        excluded, overrides = Matcher(entries("exclude", self.exclude)), Matcher([self.override])
        asked = [
            "language_model.model.layers.0.self_attn.q_proj",
            "visual.blocks.0.attn.qkv",
            "language_model.lm_head",
            "language_model.model.layers.1.mlp.down_proj",
            "language_model.model.layers.1.mlp.up_proj",
        ]
        assert ask(excluded, *asked) == [True, True, True, False, False]
        found = [overrides.find(LayerFacts(prefix=name)) for name in asked]
        assert [match and match.value for match in found] == [None, None, None, "fp8", None]
        assert excluded.unmatched() == overrides.unmatched() == ()

    def test_any_other_renaming_goes_by_aliases(self) -> None:
        matcher = Matcher(entries("ignore", ["model.layers.0.block_sparse_moe.gate"]))
        runtime = "model.layers.0.mlp.gate"
        stored = "model.layers.0.block_sparse_moe.gate"
        assert matcher.find(LayerFacts(prefix=runtime)) is None
        assert matcher.find(LayerFacts(prefix=runtime, aliases=(stored,))) is not None
        assert matcher.find(LayerFacts(prefix=stored, aliases=(runtime,))) is not None


class TestFusedLayers:
    """S13, S14."""

    def test_fused_names_on_the_list_hold_for_layer_and_shards(self) -> None:
        listed = ["model.layers.0.share_expert.gate_up_proj", "model.layers.0.self_attn.qkv_proj"]
        asked = [
            "model.layers.0.share_expert.gate_up_proj",
            "model.layers.0.self_attn.qkv_proj",
            "model.layers.1.self_attn.qkv_proj",
            "model.layers.0.self_attn.k_proj",
        ]
        matcher = Matcher(entries("modules_to_not_convert", listed))
        assert ask(matcher, *asked) == [True, True, False, True]

    def test_fused_layer_is_matched_by_all_its_shards(self) -> None:
        stem = "model.layers.0.self_attn"
        matcher = Matcher(entries("ignore", [f"{stem}.{p}_proj" for p in "qkv"]))
        assert ask(matcher, f"{stem}.qkv_proj", "model.layers.1.self_attn.qkv_proj") == [
            True,
            False,
        ]

    def test_shards_that_disagree_are_named(self) -> None:
        stem = "model.layers.0.self_attn"
        matcher = Matcher(entries("ignore", [f"{stem}.q_proj", f"{stem}.k_proj"]))
        match = matcher.find(LayerFacts(prefix=f"{stem}.qkv_proj"))
        assert match is not None
        assert match.conflict == (
            f"the shards of {stem}.qkv_proj disagree ({stem}.q_proj: ignore[0] = '{stem}.q_proj'; "
            f"{stem}.k_proj: ignore[1] = '{stem}.k_proj'; {stem}.v_proj: not listed)"
        )

    def test_only_shards_that_exist_vote(self) -> None:
        stem = "model.layers.5.self_attn"
        matcher = Matcher(entries("ignore", [f"{stem}.q_proj", f"{stem}.k_proj"]))
        given = LayerFacts(prefix=f"{stem}.qkv_proj", shards=(f"{stem}.q_proj", f"{stem}.k_proj"))
        plain = StoredTensor(dtype="bfloat16", shape=(8, 8))
        seen = LayerFacts(
            prefix=f"{stem}.qkv_proj", stored={"q_proj.weight": plain, "k_proj.weight": plain}
        )
        for facts in (given, seen):
            match = matcher.find(facts)
            assert match is not None and match.conflict == ""

    def test_shards_with_other_values_disagree(self) -> None:
        listed = [
            Entry(text=f"a.{p}_proj", source=f"{p}", value=v)
            for p, v in zip("qkv", "xxy", strict=True)
        ]
        match = Matcher(listed).find(LayerFacts(prefix="a.qkv_proj"))
        assert match is not None and "a.v_proj: v" in match.conflict

    def test_a_models_own_fusion_is_known_by_its_mapping(self) -> None:
        matcher = Matcher(entries("ignore", ["layers.0.mlp.w1", "layers.0.mlp.w3", "layers.1.w13"]))
        fusion = {"w13": ["w1", "w3"]}
        assert matcher.find(LayerFacts(prefix="model.layers.0.mlp.w13")) is None
        assert matcher.find(LayerFacts(prefix="model.layers.0.mlp.w13"), fusion) is not None
        assert matcher.find(LayerFacts(prefix="layers.1.w3"), fusion) is not None

    def test_a_glob_for_one_shard_is_no_glob_for_its_siblings(self) -> None:
        matcher = Matcher(entries("ignore", ["model.layers.0.mlp.gate*"]), ROOTED)
        assert ask(matcher, "model.layers.0.mlp.gate", "model.layers.0.mlp.up_proj") == [
            True,
            False,
        ]

    def test_experts_are_one_layer_of_many(self) -> None:
        names = [f"model.layers.0.mlp.experts.{e}.up_proj" for e in range(4)]
        facts = LayerFacts(prefix="model.layers.0.mlp.experts", kind="experts", shards=tuple(names))
        assert Matcher(entries("ignore", names)).find(facts) is not None
        partly = Matcher(entries("ignore", names[:3])).find(facts)
        assert partly is not None and f"{names[3]}: not listed" in partly.conflict
        both = Matcher(entries("ignore", ["model.layers.0.mlp.experts.*"]), ROOTED)
        assert ask(both, facts.prefix, names[0], "model.layers.1.mlp.experts") == [
            True,
            True,
            False,
        ]


class TestGlobDialects:
    """S15."""

    def test_modelopt(self) -> None:
        listed = ["lm_head", "model.layers.0*", "model.layers.1.*", "model.layers.12.self_attn*"]
        asked = [
            "model.layers.0.mlp.up_proj",
            "model.layers.1.mlp.up_proj",
            "model.layers.10.mlp.experts.0.up_proj",
            "model.layers.12.self_attn.o_proj",
            "model.layers.12.mlp.up_proj",
        ]
        matcher = Matcher(entries("ignore", listed), ROOTED)
        assert ask(matcher, *asked) == [True, True, False, True, False]

    def test_gpt_oss(self) -> None:
        listed = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"]
        asked = [
            "model.layers.3.self_attn.qkv_proj",
            "model.layers.3.mlp.router",
            "model.layers.3.mlp.experts",
        ]
        matcher = Matcher(entries("modules_to_not_convert", [*listed, "lm_head"]), ROOTED)
        assert ask(matcher, *asked) == [True, True, False]


WORDS = ["model", "language_model", "layers", "1", "10", "mlp", "gate", "gate_x", "lm_head"]
NAMES = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(".".join)
GLOBS = st.lists(st.sampled_from([*WORDS, "*", "mlp*", "ga?e"]), min_size=1, max_size=4)
REGEXES = st.lists(st.sampled_from([*WORDS, ".*", "gate.*", "1?"]), min_size=1, max_size=4)
ENTRIES = st.one_of(
    NAMES,
    GLOBS.map(".".join),
    REGEXES.map(lambda parts: "re:" + r"\.".join(parts)),
)


def core_of(parts: Sequence[str]) -> list[str]:
    left = list(parts)
    while len(left) > 1 and left[0] in WRAPPERS:
        left.pop(0)
    return left


def leads(short: Sequence[str], long: Sequence[str]) -> bool:
    return list(long[: len(short)]) == list(short)


def naive_match(entry: str, name: str, dialect: Dialect) -> bool:
    """What an entry means, word for word as pattern.py says it."""
    parts = name.split(".")
    core = ".".join(core_of(parts))
    if entry.startswith("re:"):
        forms = [name] if entry.startswith("re:.*") else [name, core, f"model.{core}"]
        return any(re.match(entry[3:], form) for form in forms)
    whole, entry = entry.endswith(".*"), entry.removesuffix(".*")
    asked = entry.split(".")
    if re.search(r"[*?\[]", entry):
        stripped = core_of(asked)
        glob = ".".join(asked if stripped[0][0] in "*?[" else stripped)
        prefixes = ["".join(form[:end]) for form in (name, core) for end in _borders(form)]
        return any(fnmatchcase(prefix, glob) for prefix in prefixes)
    absolute = core_of(asked)
    if absolute[0] in WRAPPERS:
        rooted = leads(asked, parts)
    else:
        rooted = leads(absolute, core_of(parts)) and (
            whole or not dialect.anywhere or absolute != asked or leads(asked, core_of(parts))
        )
    anywhere = dialect.anywhere and not whole
    return rooted or (anywhere and any(leads(asked, parts[i:]) for i in range(len(parts))))


def _borders(name: str) -> list[int]:
    return [i for i, char in enumerate(name) if char == "."] + [len(name)]


@example(["language_model"], "model.language_model", ROOTED)
@given(st.lists(ENTRIES, max_size=6), NAMES, st.sampled_from([COMPONENTS, ROOTED]))
def test_matcher_is_the_naive_definition(listed: list[str], name: str, dialect: Dialect) -> None:
    found = Matcher(entries("ignore", listed), dialect).find(LayerFacts(prefix=name))
    assert (found is not None) is any(naive_match(entry, name, dialect) for entry in listed)


def test_fifty_thousand_names_against_a_thousand_entries() -> None:
    modules = ["self_attn.q_proj", "mlp.gate", "mlp.experts.3.up_proj", "input_layernorm"]
    listed = [f"model.layers.{i}.{m}" for i in range(200) for m in modules]
    listed += [f"model.layers.{i}.linear_attn*" for i in range(196)]
    listed += ["lm_head", "re:.*lm_head", "*.shared_expert.*", r"re:model\.visual\..*"]
    names = [f"model.layers.{i}.mlp.experts.{e}.up_proj" for i in range(500) for e in range(100)]
    facts = [LayerFacts(prefix=name) for name in names]
    matcher = Matcher(entries("ignore", listed))
    start = process_time()
    num_found = sum(matcher.find(fact) is not None for fact in facts)
    seconds = process_time() - start
    assert (len(listed), len(names), num_found) == (1000, 50_000, 200)
    assert seconds < 1.5, f"{seconds:.2f} s; about 0.2 s on an idle core"
