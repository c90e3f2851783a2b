"""Tensors that only a quantized checkpoint has: scales, zero points, packed codes.

One that nothing asked for must never be dropped quietly: its weight would be read wrongly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from quantdock.checkpoint.header import TensorEntry
from quantdock.errors import LoadError, few
from quantdock.formats import DTYPES

# The last part of their names, after the layer's own name.
_NAMES = re.compile(
    r"(?:.*_)?(?:weight|input|activation|output|kv|k|v|q|qkv)_"
    r"(?:scale|scales|scale_inv|scale_2|scale_ub|zero_point|global_scale|offset)"
    r"|weight_packed|weight_blocks|weight_g_idx|weight_qdata|qweight|qzeros|scales|g_idx"
    r"|qscale_weight|qscale_act|absmax|nested_absmax|quant_map|nested_quant_map|SCB"
    r"|bitsandbytes__\w+|W_q|.*proj_blocks|.*proj_scales|.*proj_scale_inv|deq_scale|quant_bias"
    r"|pre_quant_scale|svdquant_lora_[ab]|act_scales|w_bf16_to_fp8_scale"
)
# What scales, zero points and codes may be called that no tool is known for.
_SIGNS = re.compile(
    r"(?:.*_)?(?:scales?|q?zeros?|zero_points?|packed|blocks|qweight|absmax)(?:_inv|_\d+)?"
)
# Dtypes that hold codes or scales, never plain weights.
_DTYPES = frozenset(name for name in DTYPES if name.startswith(("float8", "float4")))


def is_quantization_tensor(name: str, dtype: str) -> bool:
    """Return whether a tensor of this name and dtype belongs to a quantized layer."""
    return dtype in _DTYPES or _NAMES.fullmatch(name.rpartition(".")[2]) is not None


def looks_quantized(name: str, dtype: str) -> bool:
    """Return whether a tensor that no layer takes may be a quantized layer's, by any tool's name.

    Layers that are not quantized have such names too, such as logit_scale; so it is to be asked of
    what nothing has read.
    """
    return is_quantization_tensor(name, dtype) or (
        _SIGNS.fullmatch(name.rpartition(".")[2]) is not None
    )


def refuse_without_block(tensors: Mapping[str, TensorEntry]) -> None:
    """Raise if ``tensors`` are those of a quantized checkpoint; for files whose JSON is silent.

    Raises:
        LoadError: naming the tensors and where a block was looked for.
    """
    found = [
        f"{name} ({entry.dtype} {list(entry.shape)})"
        for name, entry in tensors.items()
        if is_quantization_tensor(name, entry.dtype)
    ]
    if found:
        raise LoadError(
            "The checkpoint has quantization tensors, but nothing says how it is quantized.",
            why=[
                f"its files hold {few(found)}",
                "config.json has no quantization_config, and no side file has one",
            ],
            todo="Add the quantization_config that the quantizing tool wrote to config.json.",
            names=tuple(found),
        )
