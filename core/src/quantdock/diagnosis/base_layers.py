"""The 16-bit checkpoint that a quantized one was made from: its weights, found by layer names."""

from __future__ import annotations

import re
from pathlib import Path

from torch import Tensor

from quantdock.checkpoint import find_quantization, open_checkpoint
from quantdock.checkpoint.expert_names import runtime_name
from quantdock.configs.pattern import core_depth
from quantdock.errors import MismatchError
from quantdock.formats import DTYPES
from quantdock.loading.sources import Sources

# What files of one architecture call the parts of its experts -> what others call them.
_OTHER_NAMES = (
    (re.compile(r"(?<=experts)(\.\d+)\.w1(?=\.)"), r"\1.gate_proj"),
    (re.compile(r"(?<=experts)(\.\d+)\.w2(?=\.)"), r"\1.down_proj"),
    (re.compile(r"(?<=experts)(\.\d+)\.w3(?=\.)"), r"\1.up_proj"),
)
_SAME = 0.01  # relative difference of a vector that was only cast


class BaseLayers:
    """Reads weights of the 16-bit checkpoint in ``folder``, one at a time.

    Names are compared without what merely wraps a language model ("model.", "language_model.").

    Raises:
        CheckpointError: the folder holds no checkpoint.
        MismatchError: it is quantized itself.
    """

    def __init__(self, folder: str | Path) -> None:
        checkpoint = open_checkpoint(folder)
        block = find_quantization(checkpoint.config, checkpoint.folder)
        if block is not None:
            raise MismatchError(
                f"The base {folder} is quantized itself.",
                why=[f"{block.source} says {block.method}"],
                todo="Name the 16-bit checkpoint that the quantized one was made from.",
            )
        self._sources = Sources(checkpoint.tensors)
        self._names = {_core(name): name for name in checkpoint.tensors}

    def shape(self, prefix: str) -> tuple[int, ...] | None:
        """Return the shape of a layer's 16-bit weight; None where there is none."""
        name = self._names.get(_core(f"{prefix}.weight"))
        if name is None or not DTYPES[self._sources.tensors[name].dtype].floating:
            return None
        return self._sources.tensors[name].shape

    def read(self, prefix: str) -> Tensor:
        """Return the weight [N, K] of a layer that has a shape here."""
        return self._sources.read(self._names[_core(f"{prefix}.weight")])

    def moved(self, sources: Sources) -> list[str]:
        """Return the vectors among ``sources``, such as norms, that are others here.

        Quantizers that move factors from activations into weights change them.
        """
        found = []
        for name, entry in sources.tensors.items():
            other = self._sources.tensors.get(self._names.get(_core(name), ""))
            if len(entry.shape) != 1 or other is None or other.shape != entry.shape:
                continue
            if not DTYPES[entry.dtype].floating or not DTYPES[other.dtype].floating:
                continue
            here, there = sources.read(name).float(), self._sources.read(other.name).float()
            if float((here - there).norm()) > _SAME * float(there.norm()):
                found.append(name)
        return found


def _core(name: str) -> str:
    parts = name.split(".")
    core = runtime_name(".".join(parts[core_depth(parts) :]))
    for pattern, other in _OTHER_NAMES:
        core = pattern.sub(other, core)
    return core
