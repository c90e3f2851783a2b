"""Small checkpoints that the tests of loading write for themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

torch.set_num_threads(1)

LLAMA = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 320,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture
def make_toy(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a random model of one type and returns its folder."""

    def make(model_type: str = "llama", dtype: torch.dtype = torch.bfloat16, **fields) -> Path:
        torch.manual_seed(7)
        config = AutoConfig.for_model(model_type, **{**LLAMA, **fields})
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        for parameter in model.parameters():
            if parameter.dim() == 1:  # biases and norms: not zeros and ones, so that a swap shows
                torch.nn.init.normal_(parameter, mean=0.5, std=0.2)
        folder = tmp_path / model_type
        model.save_pretrained(folder)
        return folder

    return make
