"""Write a 16-bit checkpoint again with its linear weights in fp8, one scale for each 128x128 block.

The layout is that of DeepSeek-V3 and of transformers' fine-grained fp8: beside each ``weight`` in
float8_e4m3fn stands ``weight_scale_inv``, float32 [ceil(N / 128), ceil(K / 128)], which multiplies.
A matrix may end in a part of a block, as in DeepSeek-V3; transformers 5.24 reads whole blocks only.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from quantdock.formats import QuantSpec
from quantdock.numerics.quantize import quantize

SPEC = QuantSpec(element="fp8_e4m3", rows=128, cols=128)
QUANTIZED_SUFFIX = "_proj.weight"  # the linear layers of Llama-like models, except the head
QUANTIZATION_CONFIG = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head"],
}
INDEX = "model.safetensors.index.json"
WRITTEN = ("config.json", INDEX)  # by us, the config last: a folder with one is complete


def write_block_checkpoint(source: Path, target: Path) -> Path:
    """Return ``target`` after writing there, in fp8 blocks, the checkpoint folder ``source``.

    Goes shard by shard: memory holds one shard at a time. Embeddings, norms and the head stay as
    they are; the tokenizer's and other small files are copied.
    """
    if target.resolve() == source.resolve():
        raise ValueError(f"{target} is the source itself; its shards would be lost while read.")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    weight_map: dict[str, str] = {}
    num_bytes = 0
    for shard in sorted(source.glob("*.safetensors")):
        tensors = dict(_encode_shard(shard))
        save_file(tensors, target / shard.name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, shard.name))
        num_bytes += sum(tensor.nbytes for tensor in tensors.values())
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and path.name not in WRITTEN:
            shutil.copyfile(path, target / path.name)
    if (source / INDEX).is_file():
        _write_json(
            target / INDEX, {"metadata": {"total_size": num_bytes}, "weight_map": weight_map}
        )
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    _write_json(target / "config.json", config | {"quantization_config": QUANTIZATION_CONFIG})
    return target


def _encode_shard(shard: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of one shard by name, each linear weight as codes and scales."""
    with safe_open(shard, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 (not a mapping)
            tensor = tensors.get_tensor(name)
            if not name.endswith(QUANTIZED_SUFFIX):
                yield name, tensor
                continue
            quantized = quantize(tensor, SPEC)
            yield name, quantized.codes
            yield f"{name}_scale_inv", quantized.scale


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
