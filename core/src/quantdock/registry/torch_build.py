"""What the installed PyTorch was built for, read without importing it (which takes 1.5 s)."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path


def read_torch_build() -> Mapping[str, str | None]:
    """Return the strings of ``torch.version``, such as ``{"__version__": "2.13.0+cpu"}``.

    A backend that the build lacks is None or absent. Empty where PyTorch is not installed.
    """
    loaded = sys.modules.get("torch")
    if loaded is not None and hasattr(loaded, "version"):
        return _strings(vars(loaded.version))
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    path = Path(spec.origin).with_name("version.py")
    return _strings(runpy.run_path(str(path))) if path.is_file() else {}


def _strings(values: Mapping[str, object]) -> dict[str, str | None]:
    return {
        name: value for name, value in values.items() if value is None or isinstance(value, str)
    }
