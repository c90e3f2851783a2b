from __future__ import annotations

import pytest
import torch

from quantdock.errors import FormatError
from quantdock.formats import parse_spec
from quantdock.numerics import dequantize, pack_expert_blocks, quantize, unpack_expert_blocks

SPEC = parse_spec("fp4_e2m1[1x32]:e8m0:even")
NAMES = ["E1_R32_G8_bf16", "E1_R32_G8_f32", "E2_R64_G3_bf16", "E3_R96_G2_bf16"]


@pytest.mark.parametrize("name", NAMES)
def test_blocks_mean_what_transformers_reads(vector, name):
    """Scale bytes go from 0 to 254 in E3: subnormal weights, and infinite ones in bf16."""
    v = vector(f"mxfp4-gptoss/transformers_{name}")
    codes, scale = unpack_expert_blocks(v["blocks"], v["scales"])
    real = torch.stack(
        [dequantize(c, s, SPEC, dtype=v["out"].dtype) for c, s in zip(codes, scale, strict=True)]
    )
    assert torch.equal(real.transpose(1, 2), v["out"])
    blocks, scales = pack_expert_blocks(codes, scale)
    assert torch.equal(blocks, v["blocks"]) and torch.equal(scales, v["scales"])


@pytest.mark.parametrize("storage", [torch.uint8, torch.float8_e8m0fnu])
def test_weights_that_are_written_are_read_back(storage):
    made = quantize(torch.randn(6, 64), SPEC)
    blocks, scales = pack_expert_blocks(made.codes.view(2, 3, 64), made.scale.view(2, 3, 2))
    assert blocks.shape == (2, 3, 2, 16) and scales.dtype == torch.uint8
    codes, scale = unpack_expert_blocks(blocks, scales.view(storage))
    assert torch.equal(codes.view(6, 64), made.codes)
    assert torch.equal(scale.view(6, 2), made.scale)


def test_shapes_that_do_not_fit_are_refused():
    blocks = torch.zeros(2, 3, 4, 16, dtype=torch.uint8)
    with pytest.raises(FormatError, match=r"Blocks \[2, 3, 4, 16\] and scales \[2, 3, 3\]"):
        unpack_expert_blocks(blocks, blocks[:, :, :3, 0])
    with pytest.raises(FormatError, match=r"Codes \[2, 40\] and scales \[2, 2\]"):
        pack_expert_blocks(torch.zeros(2, 40, dtype=torch.uint8), torch.ones(2, 2))
