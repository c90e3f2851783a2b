"""Reading what PyTorch was built for, without importing it."""

from __future__ import annotations

import subprocess
import sys

from quantdock.registry.torch_build import read_torch_build


def test_it_says_what_torch_says():
    import torch

    build = read_torch_build()
    assert build["__version__"] == torch.__version__
    assert build["cuda"] == torch.version.cuda
    assert build["hip"] == torch.version.hip


def test_it_does_not_import_torch():
    code = (
        "import sys\nfrom quantdock.registry.torch_build import read_torch_build\n"
        "print(read_torch_build()['__version__'], 'torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [read_torch_build()["__version__"], "False"]


def test_no_torch_is_an_empty_build(monkeypatch):
    from quantdock.registry import torch_build

    monkeypatch.setattr(torch_build, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert read_torch_build() == {}
