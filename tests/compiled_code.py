"""What a compiled kernel takes of a GPU, as the tools that come with Triton tell it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import triton
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from quantdock_triton.launcher import FUSED

MOST_SPILLED = 96  # of a thread: a few numbers that loops do not need, in some version of Triton


_ALIGNED = [["tt.divisibility", 16]]


def compiled_gluon(
    kernel: Any,
    kinds: Mapping[str, str],
    constants: Mapping[str, Any],
    *,
    aligned: Iterable[str] = (),
    arch: int = 90,
    **options: Any,
) -> Any:
    """Return a kernel in Gluon as compiled for a GPU of NVIDIA's.

    Args:
        kinds: of arguments, in Triton's words; those that it does not name are constants.
        aligned: arguments that are multiples of 16.
        options: of the launch, such as num_warps.
    """
    names = kernel.arg_names
    source = GluonASTSource(
        kernel,
        {name: kinds.get(name, "constexpr") for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): _ALIGNED for name in aligned},
    )
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=FUSED | options)


def spilled_bytes(asm: Mapping[str, Any]) -> int:
    """Return the bytes of a thread's own memory that stand in for registers it does not have.

    PTX has registers without end; they are given out after it.
    """
    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return max(int(size) for size in re.findall(r"STACK:(\d+)", found))
