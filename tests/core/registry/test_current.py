"""The registry of a process: plugins are there before the first check, in every process, once."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from quantdock import get_quantization_config
from quantdock.registry import choose_method, plugins
from quantdock.registry import current as module

TOY = """
from quantdock import MethodName, hookimpl
from quantdock.configs.fp8 import Fp8Config

CONTRACT = 1

class ToyConfig(Fp8Config):
    name = "toy_q4"

ROWS = (MethodName(name="toy_q4", summary="a toy", target=__name__ + ":ToyConfig", online=True),)

@hookimpl
def get_quantization_methods():
    return ROWS
"""
CHILD = """
import sys
from types import SimpleNamespace
from quantdock import get_quantization_config
from quantdock.registry import choose_method, plugins
said = SimpleNamespace(method="toy_q4", block={"quant_method": "toy_q4"})
print(choose_method("toy_q4", None, "cpu").config_class.__name__)
print(choose_method(None, said, "cpu").config_class.__name__)
print(plugins() == plugins())
print(get_quantization_config("fp8", "cpu:generic").__name__, "torch" in sys.modules)
"""


def test_a_plugin_s_method_is_known_to_user_and_file(install, load):
    install("acme-toy", TOY)
    load()
    said = SimpleNamespace(method="toy_q4", block={"quant_method": "toy_q4"})
    assert choose_method("toy_q4", None, "cpu").config_class.__name__ == "ToyConfig"
    assert choose_method(None, said, "cpu").config_class.__name__ == "ToyConfig"
    assert get_quantization_config("toy-q4", "cpu").get_name() == "toy_q4"
    assert plugins() == plugins()


def test_another_process_loads_it_by_itself_and_without_torch(install):
    site = install("acme-toy", TOY)
    environment = {**os.environ, "PYTHONPATH": str(site), "QUANTDOCK_PLUGINS": "acme-toy"}
    run = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=False
    )
    assert run.stderr == ""
    assert run.stdout.split() == ["ToyConfig", "ToyConfig", "True", "Fp8Config", "False"]


def test_threads_share_one_load(install, monkeypatch):
    install("acme-toy", TOY)
    monkeypatch.setattr(module, "_in_use", [])
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: id(module.current()), range(64)))
    assert len(found) == 1
    assert module.current() is module._in_use[0]
