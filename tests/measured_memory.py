"""Memory that loading takes: checkpoints of any size, written at once, and a process that loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

MEASURE = """
import re, sys, torch
from pathlib import Path
import quantdock

torch.set_num_threads(1)

def anonymous_bytes():
    text = Path("/proc/self/status").read_text()
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", text)[1]) * 1024
"""
SMALL_HEAD = {"vocab_size": 320, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def write_model(folder: Path, model_type: str, **fields: Any) -> Path:
    """Return ``folder`` with a model in bfloat16 whose weights are all 0.5."""
    config = AutoConfig.for_model(model_type, **SMALL_HEAD, **fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.fill_(0.5)
    model.save_pretrained(folder)
    return folder


def printed(code: str, *arguments: object) -> str:
    """Return what ``code``, after MEASURE, prints in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-c", MEASURE + code, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout
