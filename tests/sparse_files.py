"""Writing checkpoints whose data are holes: any size of model in a few megabytes, without torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from math import ceil, prod
from pathlib import Path
from typing import Any

Described = Mapping[str, tuple[str, tuple[int, ...]]]  # name -> (header dtype, shape)

WIDTHS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1, "I8": 1}
WIDTHS |= {"I32": 4, "I64": 8}
FP8_BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def header_of(tensors: Described) -> tuple[dict[str, Any], int]:
    """Return the header that lays out ``tensors`` in order, and the bytes of their data."""
    header, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = offset + WIDTHS[dtype] * prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    return header, offset


def write_raw(path: Path, header: bytes, data_bytes: int) -> Path:
    """Write a file with these header bytes and ``data_bytes`` of zeros."""
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + data_bytes)
    return path


def write_tensors(path: Path, tensors: Described) -> Path:
    """Write a valid safetensors file of zeros."""
    header, size = header_of(tensors)
    return write_raw(path, json.dumps(header, separators=(",", ":")).encode(), size)


def write_json(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def write_checkpoint(
    folder: Path, config: Mapping[str, Any], tensors: Described, shards: int = 1
) -> Path:
    """Write config.json and the weights, in one file or in shards with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    if shards == 1:
        write_tensors(folder / "model.safetensors", tensors)
        return folder
    names = list(tensors)
    weight_map: dict[str, str] = {}
    size = ceil(len(names) / shards)
    for index in range(shards):
        file = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        part = names[index * size : (index + 1) * size]
        write_tensors(folder / file, {name: tensors[name] for name in part})
        weight_map |= dict.fromkeys(part, file)
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    return folder


def plain(name: str, *shape: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return one bf16 weight."""
    return {f"{name}.weight": ("BF16", shape)}


def block_fp8(name: str, n: int, k: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return an fp8 weight with one f32 scale for each block of 128 x 128."""
    return {
        f"{name}.weight": ("F8_E4M3", (n, k)),
        f"{name}.weight_scale_inv": ("F32", (ceil(n / 128), ceil(k / 128))),
    }


def llama(layers: int = 2, hidden: int = 256) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the tensors of a small Llama whose linear layers are fp8 in blocks."""
    tensors = plain("model.embed_tokens", 320, hidden)
    for index in range(layers):
        prefix = f"model.layers.{index}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            tensors |= block_fp8(f"{prefix}.self_attn.{name}", hidden, hidden)
        for name in ("gate_proj", "up_proj", "down_proj"):
            tensors |= block_fp8(f"{prefix}.mlp.{name}", hidden, hidden)
        tensors |= plain(f"{prefix}.input_layernorm", hidden)
    return tensors | plain("lm_head", 320, hidden)


LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "num_hidden_layers": 2,
    "tie_word_embeddings": False,
    "quantization_config": FP8_BLOCK,
}


def deepseek(layers: int, experts: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the tensors of a mixture-of-experts model, named and shaped as in DeepSeek-V3."""
    tensors = plain("model.embed_tokens", 129280, 7168)
    for index in range(layers):
        prefix = f"model.layers.{index}"
        tensors |= plain(f"{prefix}.input_layernorm", 7168)
        tensors |= block_fp8(f"{prefix}.self_attn.q_a_proj", 1536, 7168)
        tensors |= block_fp8(f"{prefix}.self_attn.o_proj", 7168, 16384)
        tensors |= plain(f"{prefix}.mlp.gate", experts, 7168)
        for name in (f"experts.{expert}" for expert in range(experts)):
            tensors |= block_fp8(f"{prefix}.mlp.{name}.gate_proj", 2048, 7168)
            tensors |= block_fp8(f"{prefix}.mlp.{name}.up_proj", 2048, 7168)
            tensors |= block_fp8(f"{prefix}.mlp.{name}.down_proj", 7168, 2048)
    return tensors | plain("lm_head", 129280, 7168)
