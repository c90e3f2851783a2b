"""Ranks: what torchrun says, and ``generate`` on two processes that exchange over gloo."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from transformers import AutoTokenizer

import quantdock
from demo.measure import generate_greedily
from demo.models import TINY_LLAMA
from quantdock.cli.ranks import Ranks, joined, read_ranks
from quantdock.errors import ConfigError
from toy_files import write_block_checkpoint
from toy_ranks import on_two

PROMPT, COUNT = "And it came to pass", 16
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}

needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()),
    reason="needs torch.distributed with gloo, which this build of torch lacks",
)


def test_without_torchrun_a_process_is_alone():
    assert read_ranks({}) == Ranks(rank=0, size=1, local=0)
    assert read_ranks({"WORLD_SIZE": "1", "RANK": "0"}) == Ranks()
    with joined(Ranks(), "cpu", None) as place:
        assert place == {"device": "cpu"}
    assert not dist.is_initialized()


def test_torchruns_words_are_read():
    ranks = read_ranks(TORCHRUN | MEETING)
    assert ranks == Ranks(rank=3, size=4, local=1)
    assert not ranks.is_first


def test_ranks_that_cannot_meet_are_told_how_to_start():
    with pytest.raises(ConfigError, match="MASTER_ADDR and MASTER_PORT is not set") as caught:
        read_ranks(TORCHRUN)
    assert "torchrun --nproc-per-node" in caught.value.todo


@needs_gloo
def test_two_ranks_write_what_one_does(tmp_path):
    """A checkpoint of blocks; 704 features are cut to 384 and 320."""
    folder = write_block_checkpoint(TINY_LLAMA, tmp_path / "fp8")
    done = on_two("generate", folder, PROMPT, "--max-new-tokens", COUNT, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    torch.set_num_threads(1)
    model = quantdock.load(folder, device="cpu")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = generate_greedily(model, tokenizer, PROMPT, num_tokens=COUNT)
    assert done.stdout.strip() == expected.text.strip()
    assert done.stderr.count("layers quantized") == 1, "only the first rank prints"
    assert "rank 0 of 2: 28 of 30 layers quantized" in " ".join(done.stderr.split())
