"""Experts are read and quantized one after another: what is held never includes 16-bit experts."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import re, sys, threading, torch
from pathlib import Path
from transformers import AutoConfig, AutoModelForCausalLM
import quantdock

torch.set_num_threads(1)

def anonymous_bytes():
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"Anonymous:\\s+(\\d+) kB", text)[1]) * 1024

folder = sys.argv[1]
if sys.argv[2] == "write":
    for name, experts in (("first", 2), ("large", 128)):
        config = AutoConfig.for_model(
            "qwen3_moe", hidden_size=512, moe_intermediate_size=512, num_experts=experts,
            num_experts_per_tok=2, num_hidden_layers=1, num_attention_heads=4, head_dim=64,
            num_key_value_heads=4, vocab_size=320, pad_token_id=0, bos_token_id=1, eos_token_id=2)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(Path(folder) / name)
    sys.exit()
quantdock.load(Path(folder) / "first", quantization=sys.argv[2], device="cpu")  # imports modules
base, peak, done = anonymous_bytes(), 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous_bytes())

thread = threading.Thread(target=watch)
thread.start()
model = quantdock.load(Path(folder) / "large", quantization=sys.argv[2], device="cpu")
done.set()
thread.join()
layers = [layer for layer in model.quantdock_plan.layers if layer.kind == "experts"]
stored, held = (sum(getattr(la, f"bytes_{w}") for la in layers) for w in ("stored", "memory"))
print(stored, held, peak - base)
"""
ONE_EXPERT = 3 * 512 * 512 * 2


def run(folder, word):
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, str(folder), word],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_128_experts_take_their_quantized_size_and_about_one_expert(tmp_path):
    run(tmp_path, "write")
    stored, held, peak = map(float, run(tmp_path, "mxfp4").split())
    assert stored == 128 * ONE_EXPERT
    assert held < 0.32 * stored
    # Quantizing computes in f32, with several copies of one matrix.
    assert peak - held < 20 * ONE_EXPERT
