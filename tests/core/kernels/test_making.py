"""A chosen kernel whose code cannot be imported is told by its name, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantdock.errors import PluginLoadError
from quantdock.kernel import Kernel, Problem
from quantdock.kernels.making import make_kernel
from quantdock.schemes import SchemeSet, SpecSet, parse_scheme

PROBLEM = Problem(scheme=parse_scheme("int8[1x*]"), n=8, k=8)
BROKEN = "import libacme_of_nowhere\n"


def kernel(target: str) -> Kernel:
    return Kernel(name="fast", target=target, accepts=SchemeSet(weight=SpecSet()))


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("acme_broken:Fast", "ModuleNotFoundError: No module named 'libacme_of_nowhere'"),
        ("acme_of_nowhere:Fast", "ModuleNotFoundError: No module named 'acme_of_nowhere'"),
        ("quantdock.kernel:Fast", "AttributeError: module 'quantdock.kernel' has no attribute"),
    ],
)
def test_code_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, why: str
) -> None:
    (tmp_path / "acme_broken.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginLoadError) as caught:
        make_kernel(kernel(target), PROBLEM)
    text = str(caught.value)
    assert text.startswith("The kernel fast was chosen, and its code cannot be imported.\n")
    assert f"  {target}: {why}" in text and "--require" in text
    assert caught.value.kernel == "fast"


def test_what_the_kernel_itself_raises_is_its_own() -> None:
    with pytest.raises(TypeError):
        make_kernel(kernel("quantdock.kernel:Kernel"), PROBLEM)
