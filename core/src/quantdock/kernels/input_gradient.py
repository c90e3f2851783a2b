"""The gradient of a linear layer's input, from any layout: back through the dequantized weight.

Rounding x to its quantized grid has no slope, so its gradient passes straight through (Bengio et
al., arXiv 1308.3432), for values beyond a static range too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock.numerics import CanonicalWeight


def input_gradient(gradient: Tensor, weight: CanonicalWeight) -> Tensor:
    """Return ``gradient @ weight`` times the input multiplier, summed in f32; in its own dtype.

    One segment is dequantized at a time.

    Shapes:
        gradient: [..., N], of the result. Returns [..., K].
    """
    n, k = weight.shape
    rows = gradient.reshape(gradient.shape[:-1].numel(), n).to(torch.float32)
    sums = rows.new_zeros((len(rows), k))
    start = 0
    for segment in weight.segments:
        stop = start + len(segment.codes)
        sums.addmm_(rows[:, start:stop], segment.dequantize())
        start = stop
    if weight.input_multiplier is not None:
        sums.mul_(weight.input_multiplier)
    return sums.to(gradient.dtype).view(*gradient.shape[:-1], k)
