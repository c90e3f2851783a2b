"""An unforeseen error names the plugin that it came from, if it came from one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quantdock.cli.app import run
from quantdock.registry.blame import blame
from quantdock.registry.plugin import Plugin
from quantdock.testing import make_plugin, use_plugins

CORE = Plugin(distribution="quantdock", version="1", module="quantdock.x", hooks=(), is_core=True)
ACME = Plugin(distribution="quantdock-acme", version="0.3", module="acme_toy.plugin", hooks=())


def function_of(module: str, source: str) -> Callable[..., Any]:
    """Return the function ``f`` of ``source`` as if a module of that name had it."""
    members: dict[str, Any] = {"__name__": module}
    exec(source, members)
    found: Callable[..., Any] = members["f"]
    return found


def fault_of(function: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(ZeroDivisionError) as raised:
        function()
    return blame(raised.value, (ACME, CORE))


def test_the_plugin_s_innermost_line_is_named() -> None:
    inner = function_of("acme_toy.widened", "def f(divide):\n\n    return divide()\n")
    outer = function_of("acme_toy.layer", "def f(inner, divide):\n    return inner(divide)\n")
    where, fault = fault_of(lambda: outer(inner, lambda: 1 // 0))
    assert where == "in acme_toy.widened, line 3, of the plugin quantdock-acme 0.3"
    assert fault.startswith("A fault of quantdock-acme or of a library it uses, and another kernel")


def test_the_core_and_others_are_no_plugin() -> None:
    others = function_of("acme_toys.widened", "def f():\n    return 1 // 0\n")
    own = function_of("quantdock.kernels.x", "def f(inner):\n    return inner()\n")
    expected = ("", "A fault of QuantDock or of a library it uses")
    assert fault_of(lambda: own(others)) == expected


def test_the_command_line_says_whose_fault_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = function_of("acme_toy.widened", "def f(*given, **more):\n    return 1 // 0\n")
    monkeypatch.setattr("quantdock.plan.planner.explain", broken)
    with use_plugins(make_plugin("acme_toy", get_kernels=lambda platform: ())):
        assert run(["explain", "anywhere"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: Unexpected ZeroDivisionError: integer division or modulo by zero"
    assert lines[1] == "  in acme_toy.widened, line 2, of the plugin acme-toy 0.0.0"
    assert lines[2].startswith("A fault of acme-toy or of a library it uses, and another kernel")
    assert lines[2].endswith("; run again with --debug and report it.")
