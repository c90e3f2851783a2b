"""Checkpoints of a decoder of real size with random weights, plain and quantized on the GPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from quantdock.convert.goals import GOALS
from quantdock.convert.rounding import round_weight
from quantdock.schemes import Scheme

PLAIN = "bf16"
LAYERS = 32
SIZES = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}  # of Llama 3 8B
_FILE_BYTES = "4GB"
_INDEX = "model.safetensors.index.json"


def checkpoint(folder: Path, name: str, layers: int, device: str = "cuda", **sizes: int) -> Path:
    """Return the folder of the decoder as ``name`` has it, written unless it is there.

    Args:
        name: PLAIN, or a word for ``quantdock convert --to``. sizes: take the place of SIZES.
    """
    target, unfinished = (folder / f"{name}-{layers}{end}" for end in ("", ".partial"))
    if not target.is_dir():
        shutil.rmtree(unfinished, ignore_errors=True)
        if name == PLAIN:
            _write_plain(unfinished, layers, device, SIZES | sizes)
        else:
            plain = checkpoint(folder, PLAIN, layers, device, **sizes)
            _write_quantized(plain, unfinished, name, device)
        unfinished.rename(target)
    return target


def _write_plain(target: Path, layers: int, device: str, sizes: dict[str, int]) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(**sizes, num_hidden_layers=layers, dtype="bfloat16")
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(target, max_shard_size=_FILE_BYTES)


def _write_quantized(source: Path, target: Path, word: str, device: str) -> None:
    """Write what ``quantdock convert --to word`` makes of ``source``, computed on the GPU."""
    target.mkdir(parents=True)
    scheme = GOALS[word].scheme(word)
    weight_map: dict[str, str] = {}
    layers: dict[str, Scheme] = {}
    plain: list[str] = []
    for file in sorted(source.glob("*.safetensors")):
        made: dict[str, Tensor] = {}
        for name, tensor in load_file(file, device=device).items():
            prefix = name.removesuffix(".weight")
            if not prefix.endswith("_proj"):
                made[name] = tensor
                if prefix == "lm_head":
                    plain.append(prefix)
                continue
            layers[prefix] = scheme
            made |= {f"{prefix}.{last}": part for last, part in _encoded(word, tensor)}
        save_file(made, target / file.name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(made, file.name)
    (target / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = json.loads((source / "config.json").read_text())
    block = GOALS[word].dialect.for_layers(layers).make_block(layers, plain)
    config |= {"quantization_config": block}
    (target / "config.json").write_text(json.dumps(config))


def _encoded(word: str, values: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that are stored of a weight, by what follows the layer's name."""
    goal = GOALS[word]
    scheme, dialect = goal.scheme(word), goal.dialect
    scale_dtype = dialect.scale_dtype(scheme.weight, "bfloat16")
    weight = round_weight(values, scheme.weight, scale_dtype, divides=dialect.divides)
    for last, tensor in dialect.encode(scheme, weight, scale_dtype).items():
        yield last, tensor.contiguous().cpu()
