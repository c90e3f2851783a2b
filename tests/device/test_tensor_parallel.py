"""On two GPUs of one machine: ``generate`` divided among them, over NCCL."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoTokenizer

import quantdock
from demo.measure import generate_greedily
from demo.models import TINY_LLAMA
from toy_ranks import on_two

pytestmark = pytest.mark.device


@pytest.mark.parametrize("method", ["none", "fp8_per_block"])
def test_two_gpus_write_what_one_does(cuda, method):
    if torch.accelerator.device_count() < 2:
        pytest.skip(f"needs two GPUs; {cuda} has {torch.accelerator.device_count()}")
    prompt, count = "And it came to pass", 12
    require = None if method == "none" else "reference"
    asked = ["-q", method, "--dtype", "float32", *(["--require", require] if require else [])]
    done = on_two("generate", TINY_LLAMA, prompt, "--max-new-tokens", count, *asked)
    assert done.returncode == 0, done.stderr
    options = {"dtype": "float32", "require": require, "device": "cuda"}
    model = quantdock.load(TINY_LLAMA, method, **options)
    tokenizer = AutoTokenizer.from_pretrained(TINY_LLAMA)
    expected = generate_greedily(model, tokenizer, prompt, num_tokens=count)
    assert done.stdout.strip() == expected.text.strip()
    assert "rank 0 of 2" in " ".join(done.stderr.split())
