"""Layers of every rank, made by hand in one process, and the same layer on one rank."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from subprocess import CompletedProcess
from threading import Barrier, BrokenBarrierError
from typing import Any, cast

import torch
from torch import Tensor

import quantdock
from demo.models import ROOT
from quantdock import Policy
from quantdock.formats import parse_spec
from quantdock.layers import LinearBase, ParallelGroup
from quantdock.numerics import encode_scale, quantize
from toy_llama import BLOCK, STATIC, TENSOR

torch.set_num_threads(1)

# What a layer may be: config name, the checkpoint's block (None: quantized at load), its tile.
KINDS: dict[str, tuple[str, Mapping[str, Any] | None, str]] = {
    "none": ("none", None, ""),
    "tensor": ("fp8", TENSOR, "*x*"),
    "static": ("fp8", STATIC, "*x*"),
    "channel": ("w8a8_fp8", {"quant_method": "w8a8_fp8"}, "1x*"),
    "block": ("fp8", BLOCK, "128x128"),
    "mxfp8": ("mxfp8", {"quant_method": "mxfp8"}, "1x32"),
    "online tensor": ("fp8_per_tensor", None, ""),
    "online channel": ("fp8_per_channel", None, ""),
    "online block": ("fp8_per_block", None, ""),
    "online mxfp8": ("mxfp8", None, ""),
}
QUANTIZED = tuple(kind for kind in KINDS if kind != "none")


def values(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def config_of(kind: str, platform: str = "cpu") -> Any:
    """Return the config of ``kind``, bound to ``platform`` with its reference kernels."""
    name, block, _ = KINDS[kind]
    found = quantdock.get_quantization_config(name, platform)
    config = found.online() if block is None else found.from_config(block)
    return config.bind(quantdock.dispatch_for(platform, Policy(allow_reference=True)))


def stored(kind: str, n: int, k: int, seed: int = 1) -> dict[str, Tensor]:
    """Return what a file holds of one shard [n, k]."""
    _, block, tile = KINDS[kind]
    weight = 0.1 * values(n, k, seed=seed)
    if block is None:
        return {"weight": weight}
    spec = parse_spec(f"fp8_e4m3[{tile}]" + (":e8m0:ceil" if kind == "mxfp8" else ""))
    made = quantize(weight, spec)
    scale = encode_scale(made.scale, "uint8") if kind == "mxfp8" else made.scale
    tensors = {"weight": made.codes, "weight_scale" if spec.cols is None else SCALE: scale}
    if kind == "static":
        tensors["input_scale"] = torch.tensor(0.01 * seed)
    return tensors


SCALE = "weight_scale_inv"


def filled(layer: Any, shards: Sequence[Mapping[str, Tensor]]) -> Any:
    """Return ``layer`` finished; each shard's whole tensors are pushed, as an engine does it."""
    declared = dict(layer.named_parameters())
    for index, shard in enumerate(shards):
        for name, tensor in shard.items():
            declared[name].weight_loader(declared[name], tensor, index)
    layer.quant_method.process_weights_after_loading(layer)
    return layer


def ranks(size: int) -> list[ParallelGroup]:
    """Return each rank of ``size``, by hand."""
    return [ParallelGroup(rank=rank, size=size) for rank in range(size)]


def weight_of(layer: LinearBase) -> Tensor:
    """Return the real weight that a finished layer computes with."""
    method: Any = layer.quant_method
    if hasattr(method, "restore"):
        weight: Tensor = method.restore(layer).dequantize()
        return weight
    return layer.weight.detach()


def relative(found: Tensor, expected: Tensor) -> float:
    """Return the error of ``found`` by the Frobenius norm."""
    return float((found - expected).norm() / expected.norm())


@dataclass(frozen=True, kw_only=True)
class ThreadGroup(ParallelGroup):
    """A rank that is a thread of this process; what ranks exchange meets in ``slots``."""

    barrier: Barrier
    slots: list[Tensor]

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self._exchange(x)).sum(0)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._exchange(x), dim=-1)

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self.slots[self.rank] = x
        self.barrier.wait(60)
        found = list(self.slots)
        self.barrier.wait(60)
        return found


def in_threads(size: int, work: Callable[[ParallelGroup], Any]) -> list[Any]:
    """Return what ``work`` makes of each of ``size`` ranks, all at once and with real exchange."""
    barrier, slots = Barrier(size), [torch.empty(0)] * size

    def run(rank: int) -> Any:
        torch.set_num_threads(1)
        group = ThreadGroup(
            rank=rank, size=size, process_group=cast(Any, "threads"), barrier=barrier, slots=slots
        )
        try:
            return work(group)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        ranks = [pool.submit(run, rank) for rank in range(size)]
    errors = [error for rank in ranks if (error := rank.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error  # what broke the others' barrier comes first
    return [rank.result() for rank in ranks]


def on_two(*arguments: object) -> CompletedProcess[str]:
    """Return the finished ``quantdock`` on two ranks of torchrun."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launch, "--nproc-per-node", "2", "-m", "quantdock", *map(str, arguments)]
    quiet = {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(
        command,
        env={**os.environ, **quiet},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
