"""Quantizing at load holds the quantized model and about one layer, never the 16-bit model."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import re, sys, torch
from pathlib import Path
from transformers import AutoConfig, AutoModelForCausalLM
import quantdock

torch.set_num_threads(1)

def anonymous_bytes():
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"Anonymous:\\s+(\\d+) kB", text)[1]) * 1024

folder = sys.argv[1]
if sys.argv[2] == "write":
    config = AutoConfig.for_model(
        "llama", hidden_size=512, intermediate_size=2048, num_hidden_layers=24,
        num_attention_heads=8, num_key_value_heads=8, vocab_size=320,
        pad_token_id=0, bos_token_id=1, eos_token_id=2)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    sys.exit()
quantdock.load(folder, quantization="fp8_per_channel", device="cpu", ignore=["model.layers.[1-9]*"])
base, peak = anonymous_bytes(), 0

def watch(items):
    global peak
    for item in items:
        peak = max(peak, anonymous_bytes())
        yield item

model = quantdock.load(folder, quantization=sys.argv[2], device="cpu", track=watch)
peak = max(peak, anonymous_bytes())
total = sum(layer.bytes_stored for layer in model.quantdock_plan.layers)
print((peak - base) / total)
"""


def run(folder, word):
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, str(folder), word],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_peak_of_an_online_load_stays_below_60_percent_of_the_checkpoint(tmp_path):
    run(tmp_path, "write")
    share = float(run(tmp_path, "fp8_per_channel"))
    assert 0.45 < share < 0.60
