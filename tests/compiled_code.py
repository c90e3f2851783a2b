"""What a compiled kernel takes of a GPU, as the tools that come with Triton tell it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import triton.backends.nvidia

MOST_SPILLED = 96  # of a thread: a few numbers that loops do not need, in some version of Triton


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
