"""Files and functions stay small enough to read at once."""

from __future__ import annotations

import ast

DATA = {"core/src/quantdock/registry/names.py"}


def test_files_are_under_300_lines(core_sources, plugin_sources):
    long = {
        source.name: source.text.count("\n")
        for source in core_sources + plugin_sources
        if source.text.count("\n") > 300 and source.name not in DATA
    }
    assert long == {}


def _length(function: ast.FunctionDef) -> int:
    """Return the number of lines of a function without its docstring."""
    body = function.body
    documented = ast.get_docstring(function, clean=False) is not None
    doc = (body[0].end_lineno or 0) - body[0].lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - doc


def test_functions_are_under_40_lines(core_sources, plugin_sources):
    long = {
        f"{source.name}:{node.name}": _length(node)
        for source in core_sources + plugin_sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef) and _length(node) > 40
    }
    assert long == {}


def test_every_module_says_what_it_is(core_sources, plugin_sources):
    silent = [s.name for s in core_sources + plugin_sources if not ast.get_docstring(s.tree)]
    assert silent == []


def test_nothing_prints_and_nothing_is_caught_bare(core_sources, plugin_sources):
    wrong = []
    for source in core_sources + plugin_sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
                wrong.append(f"{source.name}:{node.lineno} print")
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                wrong.append(f"{source.name}:{node.lineno} bare except")
    assert wrong == []
