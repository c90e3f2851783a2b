"""The plugins of this checkout can be imported whether or not they are installed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

for source in sorted((Path(__file__).resolve().parents[2] / "plugins").glob("*/src")):
    if str(source) not in sys.path:
        sys.path.append(str(source))


@pytest.fixture(scope="module")
def interpreted():
    """Return what imports modules of Triton kernels anew, for Triton's interpreter on the CPU."""

    def forget():
        names = [n for n in sys.modules if n.startswith(("quantdock_triton", "quantdock_cuda"))]
        return {name: sys.modules.pop(name) for name in names}

    known = forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield import_module
    forget()
    sys.modules.update(known)
