"""Layers that do not fit are named before anything is written, with what would fit."""

from __future__ import annotations

import pytest

from quantdock.convert.conversion import plan_conversion
from quantdock.convert.goals import GOALS, Integers
from quantdock.errors import ConfigError
from toy_llama import DOWN, GATE, UP, llama, write


def refused(folder, to, **options):
    with pytest.raises(ConfigError) as caught:
        plan_conversion(folder, folder.with_name("out"), to, **options)
    assert not folder.with_name("out.partial").exists()
    return caught.value


def test_a_group_that_does_not_divide_k_is_told_with_one_that_does(tmp_path):
    folder = write(tmp_path / "in", llama(intermediate=320))
    for to in ("gptq", "awq", "w4a16", "compressed-tensors"):
        error = refused(folder, to)
        assert error.what == f"1 layer does not fit {GOALS[to].dialect.name}."
        assert error.why == (f"{DOWN}: K=320 is no multiple of the group size, 128",)
        assert error.todo == (
            "Leave them as they are: --ignore '*.down_proj'. Or take smaller groups: "
            "--group-size 64."
        )
        assert error.facts["names"] == (DOWN,)
    for to in ("w8a16", "w8a8", "w8a8_int8"):
        assert plan_conversion(folder, tmp_path / to, to).work.num_layers == 7


def test_where_no_group_fits_all_the_one_that_leaves_fewest_out_is_told(tmp_path):
    folder = write(tmp_path / "in", llama(intermediate=172))
    asked = Integers(group_size=512)  # K is 256 but for one layer
    error = refused(folder, "w4a16", integers=asked)
    assert len(error.facts["names"]) == 7
    assert error.todo.endswith("--group-size 128 --ignore '*.down_proj'.")
    left = Integers(group_size=128)
    plan = plan_conversion(folder, tmp_path / "out", "w4a16", integers=left, ignore=["*.down_proj"])
    assert plan.work.num_layers == 6


@pytest.mark.parametrize(
    ("to", "bits", "size", "period"),
    [("gptq", 4, 324, 8), ("gptq", 3, 336, 32), ("awq", 4, 324, 8)],
)
def test_sizes_that_do_not_fill_words_are_told(tmp_path, to, bits, size, period):
    folder = write(tmp_path / "in", llama(intermediate=size))
    options = Integers(bits=bits, group_size=-1)
    error = refused(folder, to, integers=options)
    text = f"N={size} is no multiple of {period}, which {bits}-bit codes are packed by"
    assert f"{GATE}, {UP}: {text}" in error.why
    assert any(DOWN in reason and f"K={size}" in reason for reason in error.why) is (to == "gptq")
    assert "--group-size" not in error.todo
    work = plan_conversion(folder, tmp_path / "out", to, integers=options, ignore=["*.mlp.*"]).work
    assert work.num_layers == 4


def test_compressed_tensors_packs_any_size(tmp_path):
    folder = write(tmp_path / "in", llama(intermediate=323))
    options = Integers(group_size=-1, symmetric=False)
    report = plan_conversion(folder, tmp_path / "out", "w4a16", integers=options).run()
    assert report.num_layers == 7
    plain = plan_conversion(report.target, tmp_path / "plain", "none").run()
    assert plain.num_layers == 7


def test_fp8_is_no_matter_of_groups(tmp_path):
    folder = write(tmp_path / "in", llama(intermediate=320))
    assert plan_conversion(folder, tmp_path / "out", "fp8_per_block").work.num_layers == 7
