"""Imports run one way, and plugins know only the core."""

from __future__ import annotations

import ast

RANKS = {
    "errors": 0,
    "arguments": 0,
    "fields": 0,
    "user_cache": 0,
    "formats": 1,
    "footprint": 2,
    "numerics": 2,
    "schemes": 3,
    "platform": 3,
    "policy": 3,
    "problem": 4,
    "tuner": 4,
    "substitution": 4,
    "descriptor": 4,
    "kernel": 4,
    "dispatch": 4,
    "kernels": 4,
    "method": 5,
    "methods": 5,
    "layers": 5,
    "functional": 5,
    "kv_cache": 5,
    "config": 6,
    "configs": 6,
    "method_name": 6,
    "hookspecs": 7,
    "registry": 7,
    "checkpoint": 8,
    "plan": 8,
    "loading": 9,
    "convert": 9,
    "integrations": 10,
    "diagnosis": 11,
    "tuning": 11,
    "cli": 12,
    "testing": 13,
}


def _imported(tree: ast.Module) -> list[str]:
    """Return every module imported anywhere in a file, inside functions too."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module]
    return names


def _part(module: str) -> str | None:
    """Return the part of the core a module belongs to; None for others and for the face."""
    parts = module.split(".")
    return parts[1] if parts[0] == "quantdock" and len(parts) > 1 else None


def test_every_part_of_the_core_has_a_rank(core_sources):
    folder = next(s.path.parent for s in core_sources if s.path.name == "errors.py")
    parts = {path.stem for path in folder.iterdir() if not path.name.startswith("_")}
    assert parts - {"py"} == set(RANKS)


def test_imports_run_one_way(core_sources):
    wrong = []
    for source in core_sources:
        part = source.path.relative_to(core_root(source)).parts[0].removesuffix(".py")
        if part.startswith("__"):
            continue
        for module in _imported(source.tree):
            target = _part(module)
            if target is not None and RANKS[target] > RANKS[part]:
                wrong.append(f"{source.name} imports {module}")
    assert wrong == []


def core_root(source):
    return next(p for p in source.path.parents if p.name == "quantdock")


def test_plugins_import_the_core_and_never_each_other(plugin_sources):
    wrong = []
    for source in plugin_sources:
        own = next(p.name for p in source.path.parents if p.name.startswith("quantdock_"))
        for module in _imported(source.tree):
            top = module.split(".")[0]
            if top.startswith("quantdock_") and top not in (own, "quantdock_triton"):
                wrong.append(f"{source.name} imports {module}")
    assert wrong == []
