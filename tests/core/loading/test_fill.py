"""Filling a rank's layer from files: what is read, and that reading less gives the same bits."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from quantdock.checkpoint import read_header
from quantdock.errors import LoadError
from quantdock.layers import ColumnParallelLinear, ParallelGroup, RowParallelLinear
from quantdock.loading import reader
from quantdock.loading.fill import fill_layer, missing_tensors
from quantdock.loading.sources import Sources
from toy_ranks import QUANTIZED, config_of, filled, stored

CPU = torch.device("cpu")


@pytest.fixture
def sources(tmp_path):
    def write(tensors):
        path = tmp_path / "model.safetensors"
        save_file({f"layer.{name}": tensor for name, tensor in tensors.items()}, path)
        return Sources(read_header(path))

    return write


@pytest.fixture
def counted(monkeypatch):
    """Return the list of sizes, in bytes, of all that is read."""
    sizes = []
    plain = reader._read_bytes

    def count(entry, offset, size):
        sizes.append(size)
        return plain(entry, offset, size)

    monkeypatch.setattr(reader, "_read_bytes", count)
    return sizes


@pytest.mark.parametrize("layer_class", [ColumnParallelLinear, RowParallelLinear])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_what_files_hold_and_what_engines_push_give_the_same_bits(sources, kind, layer_class):
    for size, width in ((2, 704), (2, 512)):
        tensors = stored(kind, width, width)
        group = ParallelGroup(rank=1, size=size)
        pushed, read = (
            layer_class(
                width, width, False, quant_config=config_of(kind), prefix="layer", group=group
            )
            for _ in range(2)
        )
        filled(pushed, [tensors])
        found = sources(tensors)
        assert missing_tensors(read, found) == []
        fill_layer(read, found, CPU)
        for name, parameter in pushed.named_parameters():
            other = read.get_parameter(name)
            assert torch.equal(parameter.view(torch.uint8), other.view(torch.uint8)), name


def test_a_rank_reads_its_own_rows_where_tiles_allow(sources, counted):
    tensors = stored("block", 512, 256)
    for rank in range(4):
        layer = ColumnParallelLinear(
            256,
            512,
            False,
            quant_config=config_of("block"),
            prefix="layer",
            group=ParallelGroup(rank=rank, size=4),
        )
        fill_layer(layer, sources(tensors), CPU)
    assert counted == [128 * 256, 2 * 4] * 4


def test_a_cut_inside_a_block_reads_all(sources, counted):
    layer = ColumnParallelLinear(
        256,
        704,
        False,
        quant_config=config_of("block"),
        prefix="layer",
        group=ParallelGroup(rank=1, size=2),
    )
    fill_layer(layer, sources(stored("block", 704, 256)), CPU)
    assert counted == [704 * 256, 6 * 2 * 4]


def test_a_tensor_of_another_size_is_refused_before_any_part_is_taken(sources):
    layer = ColumnParallelLinear(
        256,
        512,
        False,
        quant_config=config_of("channel"),
        prefix="layer",
        group=ParallelGroup(rank=0, size=2),
    )
    with pytest.raises(LoadError, match=r"weight is \[1024, 256\], not \[512, 256\]"):
        fill_layer(layer, sources(stored("channel", 1024, 256)), CPU)
    assert layer.quant_method.pending.is_empty
