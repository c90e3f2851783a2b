"""``quantdock plugins``: the place to look when something is wrong, so it shows what it can."""

from __future__ import annotations

import pytest

from quantdock.cli.app import run
from quantdock.testing import make_plugin, use_plugins


@pytest.fixture
def command(capsys):
    """Return a function that runs one command line: (exit code, stdout, stderr)."""

    def call(*arguments):
        code = run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_tables_are_shown_though_the_platform_that_is_set_does_not_exist(command, monkeypatch):
    monkeypatch.setenv("QUANTDOCK_PLATFORM", "abacus")
    code, out, err = command("plugins")
    assert code == 1
    assert "Plugins" in out and "Platforms" in out and "cpu:" in out and "chosen" not in out
    assert err.startswith("error: No installed plugin brings the platform 'abacus'")
    assert "QUANTDOCK_PLATFORM=abacus asks for it" in err


def test_reasons_are_printed_as_they_are(command):
    def broken(quantization, platform):
        raise ValueError("no [red]such[/thing]")

    with use_plugins(make_plugin("toy", get_quantization_config=broken)):
        run(["plugins"])
        code, out, _ = command("plugins")
    assert code == 0
    assert "not used: " in out and "no [red]such[/thing]" in out


def test_names_are_whole_in_a_narrow_terminal(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    _, out, _ = command("plugins")
    assert "│ int8_per_channel_weight_only │" in out
    assert "…" not in out
