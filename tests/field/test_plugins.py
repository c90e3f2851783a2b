"""Plugins of the field: S53, S54, S57 - found in time, broken alone, never a silent tie."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import quantdock
from quantdock import Absent, Platform, PlatformEntry
from quantdock.cli.app import run as run_cli
from quantdock.errors import MethodLookupError, PluginConflictError
from quantdock.registry import plugins
from quantdock.registry.current import load_registry, use_registry
from quantdock.testing import make_plugin, use_plugins
from toy_llama import BLOCK, LINEARS, llama, load, write

PLUGIN = """
from quantdock import MethodName, hookimpl
CONTRACT = 1

@hookimpl
def get_quantization_methods():
    return (MethodName(name="toy_q4", summary="a toy", target="acme_toy.configs:Toy", online=True),)
"""
CONFIGS = """
from quantdock.configs.online import Fp8PerChannelConfig

class Toy(Fp8PerChannelConfig):
    '''Its files store 16-bit weights, which it quantizes at load.'''
    name = "toy_q4"

    @classmethod
    def from_config(cls, config):
        return cls.online()
"""
IN_A_WORKER = """
import sys, quantdock
from quantdock.registry import plugins
plugins(), plugins()
for folder, user in ((sys.argv[1], "toy_q4"), (sys.argv[2], None)):
    plan = quantdock.explain(folder, platform="cpu", quantization=user)
    print(plan.method, plan.totals.quantized)
assert quantdock.get_quantization_config("toy_q4").get_name() == "toy_q4"
"""


@pytest.fixture
def site(tmp_path, monkeypatch) -> Iterator[Path]:
    """Return a folder on the path with an installed plugin for toy_q4."""
    folder = tmp_path / "site"
    info = folder / "acme_toy-1.0.dist-info"
    package = folder / "acme_toy"
    for made in (info, package):
        made.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[quantdock]\ntoy = acme_toy\n")
    (package / "__init__.py").write_text(PLUGIN)
    (package / "configs.py").write_text(CONFIGS)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in ("acme_toy", "acme_toy.configs"):  # other tests have modules of these names
        sys.modules.pop(name, None)


@pytest.fixture
def toys(tmp_path) -> tuple[Path, Path]:
    """Return a plain checkpoint, and one whose block names toy_q4."""
    plain = write(tmp_path / "plain", llama())
    return plain, write(tmp_path / "said", llama(), {"quant_method": "toy_q4"})


def test_s53_a_method_of_a_plugin_is_there_before_anything_is_checked(site, toys):
    plain, said = toys
    with use_registry(load_registry()):
        first = plugins()
        assert first == plugins()
        assert [str(p) for p in first].count("acme-toy 1.0") == 1
        for folder, user in ((plain, "toy_q4"), (plain, "TOY-Q4"), (said, None), (said, "toy_q4")):
            plan = load(folder, user).quantdock_plan
            assert (plan.method, plan.totals.quantized) == ("toy_q4", len(LINEARS))
        assert run_cli(["explain", str(plain), "-q", "toy_q4"]) == 0
        assert run_cli(["explain", str(said)]) == 0
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_toy"]:
        del sys.modules[name]


def test_s53_another_process_finds_it_too(site, toys):
    code = [sys.executable, "-c", IN_A_WORKER, *map(str, toys)]
    done = subprocess.run(
        code, capture_output=True, text=True, env={"PYTHONPATH": str(site), "PATH": ""}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["toy_q4", str(len(LINEARS))] * 2


def test_s53_without_the_plugin_its_name_is_a_clear_error(toys):
    with (
        use_plugins(),
        pytest.raises(MethodLookupError, match=r"'toy_q4' on cpu[\s\S]*pip install"),
    ):
        load(toys[1])


def test_s54_a_method_whose_library_is_broken_takes_nobody_down(tmp_path):
    def answer(quantization, platform):
        if quantization == "bitsandbytes":
            raise ImportError("libfoo.so: cannot open shared object file")

    fp8 = write(tmp_path / "fp8", llama("128x128"), BLOCK)
    bnb = write(tmp_path / "bnb", llama(), {"quant_method": "bitsandbytes", "load_in_4bit": True})
    with use_plugins(make_plugin("acme_bnb", get_quantization_config=answer)):
        assert load(fp8).quantdock_plan.totals.quantized == len(LINEARS)
        for call in (load, quantdock.explain):
            with pytest.raises(MethodLookupError) as caught:
                call(bnb)
            assert "ImportError: libfoo.so: cannot open shared object file" in str(caught.value)
            assert str(caught.value).endswith("pip install --upgrade --force-reinstall acme-bnb")
        assert load(fp8).quantdock_plan.method == "fp8"


def test_s54_a_method_of_the_core_whose_module_is_broken(tmp_path, monkeypatch, capsys):
    class Broken:
        """Finds one module, and fails to import it."""

        def find_spec(self, name, path=None, target=None):
            if name == "quantdock.configs.mxfp8":
                raise ImportError("libfoo.so: cannot open shared object file")

    monkeypatch.delitem(sys.modules, "quantdock.configs.mxfp8", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    fp8 = write(tmp_path, llama("128x128"), BLOCK)
    with use_plugins():
        assert load(fp8).quantdock_plan.totals.quantized == len(LINEARS)
        with pytest.raises(MethodLookupError) as caught:
            quantdock.get_quantization_config("mxfp8", "cpu")
        assert "mxfp8 exists and could not be loaded on cpu" in str(caught.value)
        assert "ImportError: libfoo.so: cannot open shared object file" in str(caught.value)
        assert run_cli(["plugins", "--names"]) == 0
    out = capsys.readouterr().out
    assert "mxfp8" in out and "fp8_per_channel" in out


def test_s54_a_plugin_that_fails_to_import_explains_the_names_it_would_have_brought(site, toys):
    (site / "acme_toy" / "__init__.py").write_text("raise ImportError('libfoo.so')")
    with use_registry(load_registry()):
        assert load(toys[0], "fp8").quantdock_plan.totals.quantized == len(LINEARS)
        with pytest.raises(MethodLookupError) as caught:
            load(toys[1])
    assert "acme-toy 1.0 (acme_toy): ImportError: libfoo.so" in str(caught.value)


def found_cuda(index):
    return Platform(name="cuda", arch="sm_90", device="cuda")


def found_toyacc(index):
    return Platform(name="toyacc", arch="t1", device="toy")


def found_otheracc(index):
    return Platform(name="otheracc", arch="o1", device="toy")


def absent(index):
    return Absent(reason="no driver")


def describe(arch):
    return Platform(name="toyacc", arch=arch, device="toy")


def accelerator(name, probe):
    entry = PlatformEntry(
        name=name,
        rank=100,
        probe=f"{__name__}:{probe.__name__}",
        describe=f"{__name__}:describe",
        archs=("t1",),
    )
    return make_plugin(f"acme_{name}", get_platforms=lambda: (entry,))


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("QUANTDOCK_PLATFORM", raising=False)


def test_s57_an_accelerator_comes_before_the_cpu_and_the_user_may_force_either(tmp_path):
    folder = write(tmp_path, llama("128x128"), BLOCK)
    with use_plugins(accelerator("cuda", found_cuda)):
        assert quantdock.explain(folder).platform == "cuda:sm_90"
        assert quantdock.explain(folder, platform="cpu").platform.startswith("cpu:")
        assert load(folder, platform="cpu").quantdock_plan.platform.startswith("cpu:")
        assert load(folder, device="cpu").quantdock_plan.platform.startswith("cpu:")


def test_s57_the_environment_forces_it_too(tmp_path, monkeypatch):
    folder = write(tmp_path, llama("128x128"), BLOCK)
    monkeypatch.setenv("QUANTDOCK_PLATFORM", "cpu")
    with use_plugins(accelerator("cuda", found_cuda)):
        assert load(folder, device="auto").quantdock_plan.platform.startswith("cpu:")


def test_s57_two_third_parties_are_an_error_that_lists_both_and_the_option(tmp_path, capsys):
    folder = write(tmp_path, llama("128x128"), BLOCK)
    both = accelerator("toyacc", found_toyacc), accelerator("otheracc", found_otheracc)
    with use_plugins(*both):
        for call in (quantdock.explain, lambda path: load(path, device="auto")):
            with pytest.raises(PluginConflictError) as caught:
                call(folder)
            text = str(caught.value)
            assert "acme-toyacc 0.0.0 says toyacc:t1" in text
            assert "acme-otheracc 0.0.0 says otheracc:o1" in text
            assert "Set QUANTDOCK_PLATFORM=toyacc or otheracc" in text
        assert quantdock.explain(folder, platform="toyacc").platform == "toyacc:t1"
        assert load(folder).quantdock_plan.platform.startswith("cpu:"), "device='cpu' decides"
        assert run_cli(["explain", str(folder)]) == 1
        assert "QUANTDOCK_PLATFORM" in capsys.readouterr().err
        assert run_cli(["explain", str(folder), "--platform", "cpu"]) == 0


def test_s57_one_that_is_not_there_is_no_tie(tmp_path):
    folder = write(tmp_path, llama("128x128"), BLOCK)
    with use_plugins(accelerator("toyacc", absent), accelerator("otheracc", found_otheracc)):
        assert quantdock.explain(folder).platform == "otheracc:o1"
