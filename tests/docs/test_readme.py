"""The README's tables are those of the registry, and its Python lines name real things."""

from __future__ import annotations

import re

import pytest

import quantdock
from scripts import generate_tables


def test_tables_are_up_to_date():
    pytest.importorskip("quantdock_cuda", reason="needs the four platform plugins installed")
    text = generate_tables.README.read_text(encoding="utf-8")
    assert generate_tables.updated(text) == text, "run: python scripts/generate_tables.py"


def test_names_of_the_tour_exist():
    text = generate_tables.README.read_text(encoding="utf-8")
    names = set(re.findall(r"\bquantdock\.([a-z_]+)\(", text))
    assert names == {"load", "explain", "get_quantization_config"}
    assert all(callable(getattr(quantdock, name)) for name in names)


def test_linked_pages_exist():
    text = generate_tables.README.read_text(encoding="utf-8")
    root = generate_tables.README.parent
    missing = [p for p in re.findall(r"\]\(([^)#:]+)\)", text) if not (root / p).exists()]
    assert missing == []
