"""``import quantdock`` costs nothing and loads no torch; neither does anything explain needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

TORCH_FREE = (
    "quantdock",
    "quantdock.kernel",
    "quantdock.config",
    "quantdock.hookspecs",
    "quantdock.registry",
    "quantdock.configs.fp8",
    "quantdock.checkpoint",
    "quantdock.plan.planner",
    "quantdock.diagnosis",
    "quantdock.cli.app",
)


@pytest.mark.parametrize("module", TORCH_FREE)
def test_importing_loads_no_torch(module):
    code = (
        f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, f"{module} loads torch or transformers: {result.stderr}"


def test_importing_the_face_loads_nothing_but_itself():
    code = (
        "import sys; before = set(sys.modules); import quantdock; "
        "print(sorted(set(sys.modules) - before))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "['__future__', 'quantdock']"
