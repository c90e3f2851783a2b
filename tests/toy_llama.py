"""A Llama of one layer, tensor by tensor, and single layers, as the field cases need them.

Hidden 256, intermediate 512, 4 heads of 64, 2 heads of keys, vocabulary 320; normal weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import quantdock
from quantdock import Policy
from quantdock.formats import parse_spec
from quantdock.layers import LinearBase
from quantdock.numerics import quantize

torch.set_num_threads(1)

BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
TENSOR = {"quant_method": "fp8", "activation_scheme": "dynamic"}
STATIC = {"quant_method": "fp8", "activation_scheme": "static"}
LAYER = "model.layers.0"
Q, K, V, OUT = (f"{LAYER}.self_attn.{name}_proj" for name in "qkvo")
GATE, UP, DOWN = (f"{LAYER}.mlp.{name}_proj" for name in ("gate", "up", "down"))
LINEARS = (Q, K, V, OUT, GATE, UP, DOWN)
HEAD, EMBEDDING = "lm_head", "model.embed_tokens"
TEXT_CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 320,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIG = {
    **TEXT_CONFIG,
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "tie_word_embeddings": False,
}
IDS = torch.arange(3, 20)[None]


def llama(tile: str | None = None, intermediate: int = 512) -> dict[str, Tensor]:
    """Return all tensors in bfloat16; with a tile such as "128x128" the linear layers in fp8."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return (0.1 * torch.randn(shape, generator=generator)).to(torch.bfloat16)

    sizes = dict.fromkeys((Q, OUT), (256, 256))
    sizes |= {K: (128, 256), V: (128, 256), GATE: (intermediate, 256), UP: (intermediate, 256)}
    sizes |= {DOWN: (256, intermediate), EMBEDDING: (320, 256), HEAD: (320, 256)}
    tensors = {f"{name}.weight": normal(*shape) for name, shape in sizes.items()}
    for name in (f"{LAYER}.input_layernorm", f"{LAYER}.post_attention_layernorm", "model.norm"):
        tensors[f"{name}.weight"] = torch.ones(256, dtype=torch.bfloat16)
    if tile is not None:
        for name in LINEARS:
            tensors |= encoded(name, tensors[f"{name}.weight"], tile)
    return tensors


def encoded(name: str, weight: Tensor, tile: str) -> dict[str, Tensor]:
    """Return ``weight`` in fp8 as a file stores it under ``name``."""
    spec = parse_spec(f"fp8_e4m3[{tile}]")
    made = quantize(weight, spec)
    scale = "weight_scale" if spec.cols is None else "weight_scale_inv"
    return {f"{name}.weight": made.codes, f"{name}.{scale}": made.scale}


def codes(n: int, k: int, value: float = 1.0) -> Tensor:
    """Return fp8 codes [n, k] that all stand for ``value``."""
    return torch.full((n, k), value).to(torch.float8_e4m3fn)


def with_input_scales(tensors: dict[str, Tensor], value: float = 0.25) -> dict[str, Tensor]:
    """Return ``tensors`` with a static input scale for each linear layer."""
    return tensors | {f"{name}.input_scale": torch.tensor(value) for name in LINEARS}


def write(
    folder: Path, tensors: Mapping[str, Tensor], block: object = None, /, **fields: Any
) -> Path:
    """Write one file of ``tensors`` and a config.json with the block; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, "quantization_config": block, **fields}
    write_json(folder / "config.json", {k: v for k, v in config.items() if v is not None})
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_shards(folder: Path, shards: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Replace the weights of ``folder`` by files, name -> tensors, and their index."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    for name, tensors in shards.items():
        save_file(dict(tensors), folder / name, metadata={"format": "pt"})
    weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def load(folder: Path, quantization: str | None = None, **options: Any) -> Any:
    """Return the model on the CPU, in float32 unless the options say otherwise."""
    return quantdock.load(folder, quantization, **{"device": "cpu", "dtype": "float32", **options})


def dense(folder: Path, name: str) -> Tensor:
    """Return the weight of a layer, decoded at load."""
    weight: Tensor = load(folder, "none").get_submodule(name).weight
    return weight


def run(model: Any, name: str, x: Tensor) -> Tensor:
    """Return what the layer called ``name`` makes of ``x``."""
    with torch.no_grad():
        result: Tensor = model.get_submodule(name)(x)
    return result


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(input_ids=IDS).logits
    return result


def plans(model: Any) -> dict[str, Any]:
    """Return the final plan of each layer by its name."""
    return {layer.prefix: layer for layer in model.quantdock_plan.layers}


def make_layer(
    block: Mapping[str, Any] | None,
    k: int,
    shards: Sequence[Mapping[str, Tensor]],
    *,
    name: str = "fp8",
    platform: str = "cpu",
    dtype: torch.dtype = torch.float32,
    bias: Tensor | None = None,
    sizes: Sequence[int] | None = None,
) -> LinearBase:
    """Return a finished layer as an engine makes it: config by name, tensors pushed by shard.

    ``block`` None: online. The shards are fused in their order; ``sizes`` are their rows, where a
    weight does not show them.
    """
    kind = quantdock.get_quantization_config(name, platform)
    config = kind.online() if block is None else kind.from_config(block)
    config.bind(quantdock.dispatch_for(platform, Policy(allow_reference=True)))
    sizes = sizes or [shard["weight"].shape[0] for shard in shards]
    layer = LinearBase(
        k, sizes, bias is not None, params_dtype=dtype, quant_config=config, prefix=Q
    )
    declared = dict(layer.named_parameters())
    for index, shard in enumerate(shards):
        for part, tensor in shard.items():
            declared[part].weight_loader(declared[part], tensor, index)
    layer.quant_method.process_weights_after_loading(layer)
    if bias is not None:
        layer.bias.data.copy_(bias)
    return layer
