"""The kernels that make quantized inputs for the plugin's layers, as facts, without torch."""

from __future__ import annotations

from dataclasses import replace

from quantdock.problem import INPUT
from quantdock_cuda.kernels import FP8, INT8

_TARGET = "quantdock_cuda.quantized_input:CudaInput"

INPUT_KERNELS = tuple(
    replace(layers, name=f"{layers.name}_input", target=_TARGET, kinds=frozenset({INPUT}))
    for layers in (FP8, INT8)
)
