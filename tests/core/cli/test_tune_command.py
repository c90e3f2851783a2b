"""``quantdock tune`` as a person meets it: which layers, the table, what is kept, what is wrong."""

from __future__ import annotations

import pytest

from demo.models import TINY_LLAMA
from quantdock.cli.app import run
from quantdock.cli.tune_command import parse_rows
from quantdock.errors import ConfigError
from quantdock.platform import Absent, Platform, PlatformEntry
from quantdock.testing import make_plugin, use_plugins
from toy_tuner import ToyTuner

TOY = Platform(name="toyacc", arch="t1", device="cpu")


def probe(index):
    return TOY


def describe(arch):
    return Platform(name="toyacc", arch=arch, device="cpu")


ENTRY = PlatformEntry(
    name="toyacc",
    rank=200,
    probe=f"{__name__}:probe",
    describe=f"{__name__}:describe",
    archs=("t1", "t2"),
)


@pytest.fixture
def command(capsys, monkeypatch):
    """Return a function that runs one command line: (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(ToyTuner, "asked", [])
    plugin = make_plugin(
        "acme_toy", get_platforms=lambda: (ENTRY,), get_tuner=lambda platform: "toy_tuner:ToyTuner"
    )

    def call(*arguments):
        with use_plugins(plugin):
            code = run(["tune", *(str(a) for a in arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_shapes_are_measured_in_the_usual_methods(command):
    code, out, err = command("--shapes", "512x256, 128x64")
    assert code == 0, err
    [(problems, rows, thorough, again)] = ToyTuner.asked
    assert [(p.n, p.k) for p in problems] == [(512, 256)] * 2 + [(128, 64)] * 2
    schemes = [str(p.scheme.weight) for p in problems]
    assert schemes == ["fp8_e4m3[1x*]", "fp8_e4m3[128x128]"] * 2
    assert (rows, thorough, again) == ([1, 64], False, False)
    assert "1 product is in the table already (--again measures anew)" in err
    assert out.startswith("512 x 256, fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic")
    rows = [[cell.strip() for cell in line.split("│")] for line in out.splitlines()]
    assert [row[1:7] for row in rows if len(row) == 8][:2] == [
        ["1", "[old]", "10.0", "the same", "10.0", "1.00 x"],
        ["64", "[old]", "10.0", "new", "5.0", "2.00 x"],
    ]
    assert err.rstrip().endswith("1 plans were made on [toyacc:t1]")


def test_the_layers_of_a_checkpoint_are_measured_once_each(command):
    code, _, err = command(TINY_LLAMA, "-q", "fp8_per_channel", "--rows", "16,1", "--thorough")
    assert code == 0, err
    [(problems, rows, thorough, _)] = ToyTuner.asked
    assert sorted((p.n, p.k) for p in problems) == [(128, 256), (256, 256), (256, 704), (704, 256)]
    assert (rows, thorough) == ([1, 16], True)


def test_merged_and_divided_layers(command):
    code, _, err = command(TINY_LLAMA, "-q", "fp8_per_block", "--merge", "--tp", "2", "--again")
    assert code == 0, err
    [(problems, _, _, again)] = ToyTuner.asked
    assert again and "in the table already" not in err
    assert sorted((p.n, p.k, p.shards) for p in problems) == [
        (256, 128, (256,)),
        (256, 256, (128, 64, 64)),
        (256, 384, (256,)),
        (768, 256, (384, 384)),
    ]


def test_layers_without_a_choice_are_told(command):
    code, out, err = command("--shapes", "64x64", "-q", "fp8_per_block")
    assert code == 0 and out == ""
    assert "1 layer has no choice: reference has one way for so few" in " ".join(err.split())
    assert ToyTuner.asked[0][0] == []


def test_what_fails_is_told_and_an_interruption_keeps_the_rest(command):
    code, out, err = command("--shapes", "512x256", "-q", "fp8_per_block", "--rows", "64,1024,4096")
    assert code == 130
    assert "interrupted: of 3 products 2 are measured and kept" in err
    assert "not measured: [odd]: out of memory" in out
    cells = [[cell.strip() for cell in line.split("│")] for line in out.splitlines()]
    assert [c[1:7] for c in cells if len(c) == 8] == [
        ["64", "[old]", "10.0", "new", "5.0", "2.00 x"],
        ["1024", "", "", "", "", ""],
    ]


def test_a_number_in_the_platform_takes_that_device(command, monkeypatch):
    taken = []
    monkeypatch.setattr("torch.accelerator.set_device_index", taken.append)
    assert command("--shapes", "512x256", "--platform", "toyacc:1")[0] == 0
    assert command("--shapes", "512x256", "--platform", "toyacc")[0] == 0
    monkeypatch.setenv("QUANTDOCK_PLATFORM", "toyacc:2")
    assert command("--shapes", "512x256")[0] == 0
    assert taken == [1, 2]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (TOY, "toyacc can be tuned, and is on this machine: --platform toyacc"),
        (
            Absent(reason="no cable"),
            "toyacc can be tuned, and is not on this machine: acme-toy 0.0.0: no cable",
        ),
    ],
)
def test_a_platform_without_a_tuner_says_so_and_which_has_one(found, told, capsys, monkeypatch):
    monkeypatch.setattr(f"{__name__}.probe", lambda index: found)
    plugin = make_plugin(
        "acme_toy",
        get_platforms=lambda: (ENTRY,),
        get_tuner=lambda platform: "toy_tuner:ToyTuner" if platform.name == "toyacc" else None,
    )
    with use_plugins(plugin):
        code = run(["tune", "--shapes", "64x64", "--platform", "cpu:generic"])
    assert code == 1
    err = capsys.readouterr().err
    assert "There is nothing to tune on cpu:generic." in err and told in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--platform", "toyacc:t2", "--shapes", "64x64"], "toyacc:t2 is described, and tuning"),
        ([], "There are no layers to tune."),
        (["--shapes", "64"], "--shapes '64' is no shape of a layer."),
        (["--shapes", "64x0"], "--shapes '64x0' is no shape of a layer."),
        (["--shapes", "00x64"], "--shapes '00x64' is no shape of a layer."),
        (["--shapes", "64x64", "--rows", "1,zwei"], "--rows 'zwei' is no number of rows."),
        (["--shapes", "64x64", "-q", "fp9"], "fp9"),
        ([TINY_LLAMA, "-q", "fp8_per_block", "--tp", "3"], "cannot be divided among 3 ranks"),
    ],
)
def test_mistakes_end_in_one_paragraph(command, arguments, text):
    code, out, err = command(*arguments)
    assert (code, out) == (1, "")
    assert text in " ".join(err.split()) and "Traceback" not in err


def test_a_tuner_that_cannot_be_imported_is_an_error_with_its_reason(capsys):
    plugin = make_plugin(
        "acme_toy", get_platforms=lambda: (ENTRY,), get_tuner=lambda platform: "no_such.module:X"
    )
    with use_plugins(plugin):
        assert run(["tune", "--shapes", "64x64"]) == 1
    err = capsys.readouterr().err
    assert "The tuner of toyacc:t1 cannot be used." in err and "no_such" in err


def test_rows_are_numbers_each_once():
    assert parse_rows("16, 1,16") == [1, 16] and parse_rows(None) == []
    with pytest.raises(ConfigError, match="no number of rows"):
        parse_rows("0")
