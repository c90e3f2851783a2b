"""Making a chosen kernel: its code is imported here, and nowhere before."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from quantdock.errors import PluginLoadError
from quantdock.kernel import Kernel, Problem


def make_kernel(kernel: Kernel, problem: Problem) -> Any:
    """Return the kernel that ``kernel`` describes, for ``problem``.

    Raises:
        PluginLoadError: its code cannot be imported, such as where a library of it is missing.
    """
    try:
        made = resolve_name(kernel.target)
    except Exception as error:  # whatever the import of a plugin's module raises
        raise PluginLoadError(
            f"The kernel {kernel.name} was chosen, and its code cannot be imported.",
            why=[f"{kernel.target}: {type(error).__name__}: {' '.join(str(error).split())}"],
            todo="Repair the package that brings it (`quantdock plugins` lists them), or require "
            "another kernel (--require, QUANTDOCK_KERNEL).",
            kernel=kernel.name,
        ) from error
    return made(problem)
