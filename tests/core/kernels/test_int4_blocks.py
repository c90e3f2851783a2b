"""Blocks of torch's 4-bit kernel: whatever was packed here comes back, on every instruction set."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from quantdock.kernels import int4_blocks as module
from quantdock.kernels.int4_blocks import block_height, pack_blocks, unpack_blocks

CHECK = """
import torch
from quantdock.kernels.int4_blocks import block_height, pack_blocks, unpack_blocks
from quantdock.kernels.int4_pack import agrees_with_definition
for n, k in ((16, 32), (48, 34), (64, 128), (80, 32), (112, 96), (176, 2)):
    codes = torch.randint(16, (n, k), dtype=torch.uint8)
    assert torch.equal(unpack_blocks(pack_blocks(codes)), codes), (n, k)
print(torch.backends.cpu.get_cpu_capability(), block_height(), agrees_with_definition())
"""


@pytest.mark.parametrize("instructions", ["default", "avx2", "avx512"])
def test_codes_come_back_with_every_set_of_instructions(instructions: str) -> None:
    if instructions == "avx512" and not torch.cpu._is_avx512_supported():
        pytest.skip("needs AVX-512: torch believes what it is told, and this processor has none")
    run = subprocess.run(
        [sys.executable, "-c", CHECK],
        env={**os.environ, "ATEN_CPU_CAPABILITY": instructions, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    name, height, is_right = run.stdout.split()
    assert (height, is_right) == ("64" if name == "AVX512" else "32", "True")


@pytest.mark.parametrize("n", [16, 32, 48, 64, 80, 144])
def test_packing_loses_nothing_in_short_blocks(n: int) -> None:
    codes = torch.randint(16, (n, 64), generator=torch.Generator().manual_seed(n))
    packed = pack_blocks(codes.to(torch.uint8))
    assert packed.shape == (n, 32)
    assert torch.equal(unpack_blocks(packed), codes.to(torch.uint8))


def test_an_unknown_layout_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.pack_blocks
    monkeypatch.setattr(module, "pack_blocks", lambda codes: real(codes).flip(1))
    module.block_height.cache_clear()
    module._order.cache_clear()
    assert block_height() is None
    module.block_height.cache_clear()
    module._order.cache_clear()
