"""The layers that the CUDA kernels are tuned for and measured on."""

from __future__ import annotations

from quantdock_cuda.tiling import BLOCK
from quantdock_triton.tile import Form

# (N, K): projections and MLPs of DeepSeek-V3, Llama 8B and Llama 70B.
SHAPES = (
    (7168, 2048),
    (2112, 7168),
    (24576, 1536),
    (4096, 7168),
    (7168, 18432),
    (4096, 4096),
    (14336, 4096),
    (28672, 8192),
)
ROWS = (1, 16, 64, 128, 512, 2048, 4096, 8192)  # M that are reported
TUNED_ROWS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
FORMS = {"row": Form(), "block": BLOCK}
