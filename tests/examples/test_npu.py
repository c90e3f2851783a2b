"""The example of a third-party package: installed from its own pyproject, found by entry point."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NPU = ROOT / "examples" / "npu"
MIXTURE = "stories260k-mixtral-d128"
DENSE = "fp4_e2m1[1x32]:e8m0:even x fp4_e2m1[1x32]:e8m0:even:dynamic"
LOADED = """
import sys, torch, quantdock
from quantdock.cli.app import run

folder, *options = sys.argv[1:]
ids = torch.arange(3, 40)[None]
for method in ("mxfp4", "npu_w4a8"):
    logits = []
    for require in ("npu_mx_product", "reference"):
        model = quantdock.load(folder, method, platform="npu", require=require)
        logits.append(model(input_ids=ids).logits.detach())
        layers = [layer for layer in model.quantdock_plan.layers if layer.scheme]
        print({layer.kind for layer in layers}, {layer.kernel for layer in layers})
    print("off by", float((logits[0] - logits[1]).norm() / logits[1].norm()))
sys.exit(run(["generate", folder, "Once upon a time", *options]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Return a folder into which pip has installed the package, without a network."""
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "site"))
    shutil.copytree(NPU, source / "npu")  # builds leave files behind
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target)]
    subprocess.run([*command, str(source / "npu")], check=True)
    return target


def run(site: Path, *arguments: str) -> str:
    """Return what ``python arguments`` prints where the package is installed."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "COLUMNS": "200",
        "OMP_NUM_THREADS": "1",
        "QUANTDOCK_STRICT_PLUGINS": "1",
    }
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def quantdock(site: Path, *arguments: str) -> str:
    return run(site, "-m", "quantdock", *arguments)


def test_it_is_short():
    own = [path for folder in ("src", "tests") for path in (NPU / folder).rglob("*.py")]
    lines = [path.read_text().count("\n") for path in own]  # pip leaves copies in build
    assert sum(lines) < 200


def test_it_is_found_by_its_entry_point(site):
    printed = quantdock(site, "plugins")
    assert "quantdock-npu" in printed and "quantdock_npu.plugin" in printed
    assert "npu_w4a8" not in printed  # a word of the NPU, and the chosen platform is another
    assert "npu_w4a8" in quantdock(site, "plugins", "--platform", "npu")


def test_it_keeps_the_contract(site):
    printed = run(site, "-m", "pytest", "-p", "no:cacheprovider", str(NPU / "tests"))
    assert "passed" in printed and "skipped" not in printed and "failed" not in printed


def test_one_command_has_another_plan_on_another_platform(site, shared):
    command = ("explain", str(shared / "models" / "bases" / MIXTURE), "-q", "mxfp4")
    cpu = quantdock(site, *command, "--platform", "cpu")
    npu = quantdock(site, *command, "--platform", "npu")
    assert "60 quantized  fp4_e2m1[1x32]:e8m0:even\n" in cpu
    assert f"80 quantized  {DENSE}\n" in npu
    assert "npu_mx_product" in npu and "npu_mx_product" not in cpu
    assert "mxfp4 stands for experts here; a linear layer stays" in cpu
    assert "a linear layer stays" not in npu


@pytest.fixture(scope="module")
def loaded(site, shared) -> list[str]:
    """Return the lines that one process prints which loads, compares and generates."""
    folder = str(shared / "models" / "bases" / MIXTURE)
    options = ("-q", "mxfp4", "--platform", "npu", "--max-new-tokens", "12")
    return run(site, "-c", LOADED, folder, *options).splitlines()


@pytest.mark.parametrize("index", [0, 1], ids=["mxfp4", "npu_w4a8"])
def test_its_kernel_computes_what_the_reference_does(loaded, index):
    first, second, last = loaded[3 * index : 3 * index + 3]
    assert "'linear'" in first and "'experts'" in first and "'npu_mx_product'" in first
    assert "'reference'" in second and "npu_mx_product" not in second
    assert float(last.removeprefix("off by ")) < 0.05  # bf16 sums differ, and fp4 amplifies that


def test_it_generates(loaded):
    assert "Once upon a time" in "\n".join(loaded[6:])
