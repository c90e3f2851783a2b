"""Distributions that exist for one test, and registries made of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from quantdock.registry.current import load_registry, use_registry
from quantdock.registry.registry import Registry

Install = Callable[..., Path]
Load = Callable[[], Registry]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs a distribution advertising one plugin module.

    ``install("acme-toy", source, module="acme_toy", version="1.0", folder="site")``
    """

    names = []

    def make(
        distribution: str,
        source: str,
        *,
        module: str | None = None,
        version: str = "1.0",
        folder: str = "site",
        value: str | None = None,
    ) -> Path:
        site = tmp_path / folder
        name = module or distribution.replace("-", "_")
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        point = name.removeprefix("acme_")
        (info / "entry_points.txt").write_text(f"[quantdock]\n{point} = {value or name}\n")
        (site / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, name, raising=False)
        names.append(name)
        return site

    yield make
    for name in names:  # other tests have modules of these names
        sys.modules.pop(name, None)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Return a function that loads the installed plugins and puts them in use for the test."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(use_registry(load_registry()))
