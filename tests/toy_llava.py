"""A small vision-language checkpoint: the Llama of toy_llama.py behind a vision tower.

Its files use the older names (``language_model.model.layers``), which transformers renames
(``model.language_model.layers``), so that names in configs and names at run time differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import toy_llama
from toy_llama import TEXT_CONFIG

VISION = {
    "model_type": "clip_vision_model",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 16,
}
TOWER = "vision_tower.encoder.layers.0"
TOWER_FC1, TOWER_Q = f"{TOWER}.mlp.fc1", f"{TOWER}.self_attn.q_proj"


def in_file(name: str) -> str:
    """Return what the file calls a tensor or module of the plain Llama."""
    return f"language_model.{name}"


def at_run_time(name: str) -> str:
    """Return what the model calls a module of the plain Llama."""
    return name.replace("model.", "model.language_model.", 1)


def tensors(tile: str | None = None) -> dict[str, Tensor]:
    """Return all tensors; the language model's linear layers in fp8 where a tile is given."""
    made = {in_file(name): tensor for name, tensor in toy_llama.llama(tile).items()}
    linears = {f"{TOWER}.self_attn.{name}_proj": (64, 64) for name in ("q", "k", "v", "out")} | {
        f"{TOWER}.mlp.fc1": (128, 64),
        f"{TOWER}.mlp.fc2": (64, 128),
    }
    linears |= {"multi_modal_projector.linear_1": (256, 64)}
    linears |= {"multi_modal_projector.linear_2": (256, 256)}
    norms = [f"{TOWER}.layer_norm1", f"{TOWER}.layer_norm2"]
    norms += [f"vision_tower.{name}" for name in ("pre_layrnorm", "post_layernorm")]
    shapes = {f"{name}.weight": shape for name, shape in linears.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in linears.items()}
    shapes |= {f"{name}.{part}": (64,) for name in norms for part in ("weight", "bias")}
    embeddings = "vision_tower.embeddings"
    shapes |= {
        f"{embeddings}.class_embedding": (64,),
        f"{embeddings}.patch_embedding.weight": (64, 3, 16, 16),
        f"{embeddings}.position_embedding.weight": (5, 64),
    }
    generator = torch.Generator().manual_seed(1)
    for name, shape in shapes.items():
        made[name] = (0.1 * torch.randn(shape, generator=generator)).to(torch.bfloat16)
    return made


def write(
    folder: Path,
    stored: dict[str, Tensor],
    block: object = None,
    text_block: object = None,
    **fields: Any,
) -> Path:
    """Write the folder, with a block at the top, in the language model's config, or in both."""
    text = {**TEXT_CONFIG, "quantization_config": text_block}
    return toy_llama.write(
        folder,
        stored,
        block,
        model_type="llava",
        architectures=["LlavaForConditionalGeneration"],
        text_config={k: v for k, v in text.items() if v is not None},
        vision_config=VISION,
        image_token_index=319,
        **fields,
    )
