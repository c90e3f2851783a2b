"""The sources of the core and the plugins, parsed once."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Source:
    """One Python file: its path from the root, its text and its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()


def _read(pattern: str) -> list[Source]:
    paths = sorted(ROOT.glob(pattern))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return [Source(p, t, ast.parse(t)) for p, t in zip(paths, texts, strict=True)]


@pytest.fixture(scope="session")
def core_sources() -> list[Source]:
    """Return every file of the core."""
    sources = _read("core/src/quantdock/**/*.py")
    assert len(sources) > 40, "the glob finds the core"
    return sources


@pytest.fixture(scope="session")
def plugin_sources() -> list[Source]:
    """Return every file of the plugins, and of the example of one."""
    sources = _read("plugins/*/src/**/*.py") + _read("examples/*/src/**/*.py")
    assert len(sources) > 8, "the glob finds the plugins"
    return sources
