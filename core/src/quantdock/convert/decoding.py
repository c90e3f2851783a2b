"""--to none: every quantized layer of a checkpoint becomes a plain weight again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quantdock.checkpoint import Checkpoint, QuantizationBlock
from quantdock.checkpoint.metadata import SIDE_FILES
from quantdock.checkpoint.model_facts import stated_dtype
from quantdock.convert.coded import CodedLayer, CodedModel
from quantdock.convert.stacked import keeps_experts_turned
from quantdock.convert.work import Work
from quantdock.formats import DTYPES
from quantdock.numerics import torch_dtype
from quantdock.schemes import StoredTensor

_USUAL = "bfloat16"
_KEYS = ("quantization_config", "compression_config")
# Side files that say how weights are quantized.
BLOCK_FILES = frozenset(name for name, _, _ in SIDE_FILES)


def decode_checkpoint(checkpoint: Checkpoint, block: QuantizationBlock) -> Work:
    """Return the work that makes plain weights of every quantized layer.

    Raises:
        QuantDockError: the method cannot be read yet, a layer contradicts itself, or a tensor of
            the quantization belongs to nothing that was decoded.
    """
    model = CodedModel(checkpoint, block)
    dtype = plain_dtype(checkpoint.config)
    turned = keeps_experts_turned(checkpoint.config)

    def describe(layer: CodedLayer) -> dict[str, StoredTensor]:
        matrix = (layer.k, layer.n) if layer.experts and turned else (layer.n, layer.k)
        stack = (len(layer.experts),) if layer.experts else ()
        return {"weight": StoredTensor(dtype=dtype, shape=(*stack, *matrix))}

    def make(layer: CodedLayer) -> dict[str, Tensor]:
        alone = replace(layer, scheme=layer.scheme.weight_only())  # no input scale is needed
        if layer.experts:
            return {"weight": _stack(model, alone, torch_dtype(dtype), turned)}
        return {"weight": model.read(alone).dense(torch_dtype(dtype))}

    return Work(
        parts=model.rewritten(describe, make),
        config=without_block(checkpoint.config),
        num_layers=len(model.layers),
        dropped=BLOCK_FILES,
        notes=(*model.notes(), f"decoded from {model.method} to {dtype}"),
        warnings=(*block.warnings, *checkpoint.warnings),
    )


def _stack(model: CodedModel, layer: CodedLayer, dtype: torch.dtype, turned: bool) -> Tensor:
    """Return the weights of all experts [experts, n, k], or [experts, k, n], decoded one by one."""
    shape = (layer.k, layer.n) if turned else (layer.n, layer.k)
    stack = torch.empty((len(layer.experts), *shape), dtype=dtype)
    for expert, place in enumerate(stack):
        weight = model.read_expert(layer, expert).dense(dtype)
        place.copy_(weight.t() if turned else weight)
    return stack


def without_block(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of config.json without what it says of quantization, at any depth."""
    return {
        key: without_block(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in _KEYS
    }


def plain_dtype(config: Mapping[str, Any]) -> str:
    """Return the dtype that the model states; bfloat16 where that is none for weights."""
    stated = stated_dtype(config)
    return stated if stated in DTYPES and DTYPES[stated].floating else _USUAL
