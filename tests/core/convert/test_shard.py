"""Files planned to the byte: headers that safetensors reads, sizes, names, the index."""

from __future__ import annotations

from math import prod

import pytest
import torch
from safetensors.torch import load_file

from quantdock.checkpoint import open_checkpoint, read_header
from quantdock.convert.part import copy
from quantdock.convert.shard import lay_out, make_index
from quantdock.convert.shard_file import write_shard
from toy_llama import llama, write


def parts_of(folder):
    return [copy(entry) for entry in open_checkpoint(folder).tensors.values()]


@pytest.fixture
def odd(tmp_path):
    """Return a folder whose tensors have sizes that misalign their neighbours."""
    tensors = {
        "a": torch.arange(3, dtype=torch.uint8),
        "b": torch.tensor(1.5, dtype=torch.float64),
        "c": torch.zeros(0, 4, dtype=torch.bfloat16),
        "d": torch.ones(5, dtype=torch.float8_e4m3fn),
        "ü.weight": torch.arange(7, dtype=torch.float32),
    }
    return write(tmp_path / "odd", tensors)


def test_a_planned_file_is_what_safetensors_reads(odd, tmp_path):
    (shard,) = lay_out(parts_of(odd), odd, None)
    told = []
    write_shard(shard, tmp_path, told.append)
    path = tmp_path / "model.safetensors"
    assert path.stat().st_size == shard.size
    assert sum(told) == shard.num_bytes_read == 3 + 8 + 5 + 28
    before, after = load_file(odd / "model.safetensors"), load_file(path)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype and tensor.shape == after[name].shape
        assert torch.equal(
            tensor.reshape(-1).view(torch.uint8), after[name].reshape(-1).view(torch.uint8)
        )


def test_every_tensor_is_aligned(odd):
    (shard,) = lay_out(parts_of(odd), odd, None)
    assert len(shard.header) % 8 == 0
    assert list(shard.starts)[:3] == ["b", "ü.weight", "c"]
    assert shard.starts["b"] % 8 == 0 and shard.starts["ü.weight"] % 4 == 0


def test_files_are_those_of_the_input(sharded):
    shards = lay_out(parts_of(sharded), sharded, None)
    assert [shard.name for shard in shards] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    for shard in shards:
        assert set(shard.starts) == set(read_header(sharded / shard.name))


def test_a_limit_packs_in_order_and_divides_nothing(plain):
    limit = 300_000
    shards = lay_out(parts_of(plain), plain, limit)
    names = [name for shard in shards for part in shard.parts for name in part.outputs]
    assert names == list(open_checkpoint(plain).tensors)
    count = len(shards)
    assert [shard.name for shard in shards] == [
        f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)
    ]
    sizes = [shard.size - len(shard.header) for shard in shards]
    assert count > 3 and all(size <= limit for size in sizes if size != 512 * 256 * 2)
    assert len(lay_out(parts_of(plain), plain, 1)) == len(names)
    assert [s.name for s in lay_out(parts_of(plain), plain, 10**9)] == ["model.safetensors"]


def test_the_index_has_every_tensor_and_all_bytes(sharded):
    index = make_index(lay_out(parts_of(sharded), sharded, None))
    tensors = llama()
    assert set(index["weight_map"]) == set(tensors)
    assert list(index["weight_map"]) == sorted(tensors)
    total = sum(prod(t.shape) * t.element_size() for t in tensors.values())
    assert index["metadata"] == {"total_size": total}
