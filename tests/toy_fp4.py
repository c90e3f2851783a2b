"""Checkpoint folders in fp4 as tools store them, made from 16-bit ones, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from quantdock.formats import parse_spec
from quantdock.numerics import pack_bytes, quantize_weight
from tests.toy_files import edit_config

NVFP4 = parse_spec("fp4_e2m1[1x16]:e4m3:second[*x*]")
MXFP4 = parse_spec("fp4_e2m1[1x32]:e8m0:even")
MXFP8 = parse_spec("fp8_e4m3[1x32]:e8m0:ceil")
BLOCK = parse_spec("fp8_e4m3[128x128]")
# A DeepSeek-V3 of 8 experts, small, whose sizes are multiples of 32.
DEEPSEEK = {
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "num_key_value_heads": 4,
    "head_dim": 32,
}
Storage = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]  # tensors, and their real weight


def nvfp4(weight: Tensor, input_scale: float | None = 0.001) -> tuple[dict[str, Tensor], Tensor]:
    """Return a weight as ModelOpt stores it; its own second scale."""
    made = quantize_weight(weight.float(), NVFP4)
    (segment,) = made.segments
    assert segment.second_scale is not None
    tensors = {
        "weight": pack_bytes(segment.codes, bits=4),
        "weight_scale": segment.scale.to(torch.float8_e4m3fn),
        "weight_scale_2": segment.second_scale.reshape(()).clone(),
    }
    if input_scale is not None:
        tensors["input_scale"] = torch.tensor(input_scale)
    return tensors, made.dequantize()


def mxfp4(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Return a weight as Quark stores it."""
    made = quantize_weight(weight.float(), MXFP4)
    (segment,) = made.segments
    scale = segment.scale.to(torch.float8_e8m0fnu).view(torch.uint8)
    packed = pack_bytes(segment.codes, bits=4)
    return {"weight": packed, "weight_scale": scale}, made.dequantize()


def mxfp8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Return a weight in e4m3 with exponent bytes."""
    made = quantize_weight(weight.float(), MXFP8)
    (segment,) = made.segments
    scale = segment.scale.to(torch.float8_e8m0fnu).view(torch.uint8)
    return {"weight": segment.codes, "weight_scale": scale}, made.dequantize()


def fp8_blocks(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Return a weight as DeepSeek-V3 stores it."""
    made = quantize_weight(weight.float(), BLOCK)
    (segment,) = made.segments
    return {"weight": segment.codes, "weight_scale_inv": segment.scale}, made.dequantize()


def rewrite(
    folder: Path, block: Mapping[str, Any], choose: Callable[[str], Storage | None]
) -> Path:
    """Store the layers of ``folder`` as ``choose`` says of each; return a plain folder of them.

    Args:
        block: the quantization block. choose: layer name -> how it is stored; None: plain.
    """
    plain = folder.with_name(f"{folder.name}-plain")
    plain.mkdir()
    (plain / "config.json").write_bytes((folder / "config.json").read_bytes())
    stored: dict[str, Tensor] = {}
    real: dict[str, Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        how = choose(layer) if name.endswith(".weight") and tensor.dim() == 2 else None
        if how is None:
            stored[name] = real[name] = tensor
            continue
        parts, real[name] = how(tensor)
        stored |= {f"{layer}.{part}": value for part, value in parts.items()}
    for target, tensors in ((folder, stored), (plain, real)):
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, target / "model.safetensors", metadata={"format": "pt"})
    edit_config(folder, quantization_config=dict(block))
    return plain


def is_expert(layer: str) -> bool:
    """Return whether a layer is one of a routed expert's."""
    return ".experts." in layer


def is_linear(layer: str) -> bool:
    """Return whether a layer is a linear one that files quantize: no router, no head."""
    is_other = layer.endswith((".gate", "lm_head", "embed_tokens", "norm"))
    return not is_expert(layer) and not is_other and "norm" not in layer
