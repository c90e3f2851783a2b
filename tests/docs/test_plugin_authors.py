"""The plugin on the page for authors is complete: written to disk as it stands there, it works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import quantdock

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugin-authors.md"
FILE = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
USE = """
from quantdock import get_platform, get_quantization_config
from quantdock.kernel import Problem
from quantdock.registry import dispatch_for, failures, plugins, resolve_method
from quantdock.schemes import LayerFacts

print([str(p) for p in plugins()], failures())
print(get_platform(), resolve_method("acme-fp8").name, resolve_method("acme_fp8").notes)
config = get_quantization_config("acme-fp8").online().bind(dispatch_for("acme:a1"))
word = config.scheme_for(LayerFacts(prefix="up_proj"))
problem = Problem(scheme=word.scheme, n=64, k=64, promised=word.promised)
chosen = dispatch_for("acme:a1").select(problem)
print(chosen.kernel.name, chosen.scheme, chosen.substitution.name)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Return a folder with the page's files, advertised as its pyproject says."""
    folder = tmp_path_factory.mktemp("acme")
    for name, content in FILE.findall(PAGE.read_text()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = folder / "src" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = project["entry-points"]["quantdock"].items()
    (info / "entry_points.txt").write_text(
        "[quantdock]\n" + "".join(f"{name} = {module}\n" for name, module in points)
    )
    return folder


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(site / "src"),
        "QUANTDOCK_PLUGINS": "acme",
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("QUANTDOCK_PLATFORM", None)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=site,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_is_discovered_and_does_what_the_page_says(site):
    result = run(site, "-c", USE)
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        f"['quantdock-acme 0.1.0', 'quantdock {quantdock.__version__}'] ()",
        "acme:a1 fp8 ('acme_fp8 is another name of fp8',)",
        "acme_widened fp8_e4m3[1x*] acme_weight_only",
    ]


def test_its_own_conformance_test_passes(site):
    result = run(site, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests")
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"\d\d passed in", result.stdout), result.stdout
    assert "skipped" not in result.stdout


def test_every_hook_has_a_heading():
    from quantdock.registry.validation import HOOKS

    headings = re.findall(r"^### (\w+)\((.*)\)$", PAGE.read_text(), re.MULTILINE)
    assert {name: tuple(filter(None, text.split(", "))) for name, text in headings} == HOOKS
