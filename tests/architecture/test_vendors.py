"""The core knows no vendor: no device module, no probe, no architecture number."""

from __future__ import annotations

import ast
import re

FORBIDDEN_ATTRIBUTES = {"torch.cuda", "torch.xpu", "torch.mps", "torch.version"}
PROBES = re.compile(r"_?is_(cuda|hip|rocm|xpu|npu|musa|mps|cpu)\b")
ARCHITECTURES = re.compile(r"\bsm_?\d{2,3}\b|\bgfx\d+", re.IGNORECASE)
# Tables of facts for users: what a name needs elsewhere is part of the remedy.
DATA = {"core/src/quantdock/registry/names.py"}


def _docstrings(tree: ast.Module) -> set[int]:
    """Return the ids of the constants that are docstrings."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                found.add(id(first.value))
    return found


def test_no_device_module_and_no_probe(core_sources):
    wrong = []
    for source in core_sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in FORBIDDEN_ATTRIBUTES:
                wrong.append(f"{source.name}:{node.lineno} {ast.unparse(node)}")
            name = getattr(node, "id", getattr(node, "attr", getattr(node, "name", "")))
            if isinstance(name, str) and PROBES.fullmatch(name):
                wrong.append(f"{source.name}: {name}")
    assert wrong == []


def test_no_architecture_number(core_sources):
    wrong = []
    for source in core_sources:
        if source.name in DATA:
            continue
        docstrings = _docstrings(source.tree)
        for node in ast.walk(source.tree):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and id(node) not in docstrings and ARCHITECTURES.search(text):
                wrong.append(f"{source.name}:{node.lineno} {text!r}")
    assert wrong == []


def test_no_branch_on_a_platform_name(core_sources):
    names = {"cuda", "rocm", "xpu", "cpu_amx", "npu"}
    wrong = []
    for source in core_sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Compare):
                constants = {c.value for c in ast.walk(node) if isinstance(c, ast.Constant)}
                if constants & names:
                    wrong.append(f"{source.name}:{node.lineno} {ast.unparse(node)}")
    assert wrong == []
