"""Reading tensors: the bytes of every dtype, memory of its own, a file that shrank."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from quantdock.checkpoint import read_header
from quantdock.errors import CheckpointError
from quantdock.loading import reader
from quantdock.loading.reader import num_bytes, read_tensor

TENSORS = {
    "codes": torch.arange(24, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(4, 6),
    "scale": torch.arange(4, dtype=torch.uint8).view(torch.float8_e8m0fnu),
    "wide": torch.randn(3, 5),
    "half": torch.randn(7).bfloat16(),
    "packed": torch.tensor([-1, 2**31 - 1], dtype=torch.int32),
    "scalar": torch.tensor(0.5),
    "none": torch.empty(0, 8),
}


@pytest.fixture
def entries(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    return read_header(tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", sorted(TENSORS))
def test_bits_dtype_and_shape_are_the_files(entries, name):
    tensor, expected = read_tensor(entries[name]), TENSORS[name]
    assert tensor.dtype == expected.dtype and tensor.shape == expected.shape
    assert torch.equal(tensor.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))


def test_a_read_tensor_outlives_its_file(entries):
    tensor = read_tensor(entries["wide"])
    entries["wide"].file.unlink()
    assert torch.equal(tensor, TENSORS["wide"])


def test_a_file_that_shrank_is_an_error(entries):
    path = entries["wide"].file
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="ends inside tensor"):
        for entry in entries.values():
            read_tensor(entry)


@pytest.mark.parametrize(
    ("name", "region"),
    [
        ("codes", (slice(1, 3), slice(0, 6))),
        ("codes", (slice(0, 4), slice(2, 5))),
        ("scale", (slice(2, 4),)),
        ("wide", (slice(1, 2), slice(1, 2))),
        ("half", (slice(0, 3),)),
        ("packed", (slice(1, 2),)),
        ("none", (slice(0, 0), slice(2, 5))),
        ("wide", ()),
    ],
)
def test_a_region_is_that_of_the_whole(entries, name, region):
    part, expected = read_tensor(entries[name], region=region), TENSORS[name][region]
    assert part.dtype == expected.dtype and part.shape == expected.shape
    assert torch.equal(
        part.reshape(-1).view(torch.uint8), expected.contiguous().reshape(-1).view(torch.uint8)
    )
    assert part.is_contiguous()
    assert part.untyped_storage().nbytes() == part.numel() * part.element_size()


def test_only_the_rows_of_a_region_are_read(entries, monkeypatch):
    sizes = []
    plain = reader._read_bytes

    def counted(entry, offset, size):
        sizes.append(size)
        return plain(entry, offset, size)

    monkeypatch.setattr(reader, "_read_bytes", counted)
    read_tensor(entries["wide"], region=(slice(1, 3), slice(0, 2)))
    assert sizes == [2 * 5 * 4] == [num_bytes(entries["wide"], (slice(1, 3), slice(0, 2)))]
