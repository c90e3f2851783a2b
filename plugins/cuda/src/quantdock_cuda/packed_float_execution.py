"""One layer of fp4 codes in blocks on a GPU, by what runs integer codes (packed_execution.py)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from quantdock.formats import QuantSpec
from quantdock_cuda import packed_execution
from quantdock_cuda.small_float_execution import SmallFloatExecution
from quantdock_triton.packed_layout import float_packing_of
from quantdock_triton.packed_matmul import PackedWeight


class PackedFloatExecution(SmallFloatExecution):
    """Runs layers [N, K] of one spec, in blocks, on one GPU; made by ``execution``."""

    def __init__(self, spec: QuantSpec, n: int, k: int, device: int, batch_invariant: bool) -> None:
        super().__init__(spec, n, k, device, batch_invariant)
        packing = float_packing_of(spec, k)
        self._run = packed_execution.execution(packing, n, k, device, batch_invariant)

    def __call__(
        self,
        x: Tensor,
        words: Tensor,
        scale: Tensor,
        second: Tensor | None,
        bias: Tensor | None,
        out: Tensor,
    ) -> None:
        """Write ``x @ weight.T + bias`` to ``out``; as of SmallFloatExecution.

        float16, which may be too narrow for a power of two, is multiplied in f32.
        """
        assert second is not None, "rows of words in blocks have a factor each"
        weight = PackedWeight(words=words, scale=second, zero=None, scale_words=scale, last=self._n)
        if x.dtype == torch.float16:
            whole = torch.empty(out.shape, dtype=torch.float32, device=out.device)
            self._run(x.to(torch.float32), weight, bias, whole)
            out.copy_(whole)
        else:
            self._run(x, weight, bias, out)


@lru_cache(maxsize=1 << 12)
def execution(
    spec: QuantSpec, n: int, k: int, device: int, batch_invariant: bool
) -> PackedFloatExecution:
    """Return what runs layers [n, k] of ``spec``, in blocks, on GPU ``device``."""
    return PackedFloatExecution(spec, n, k, device, batch_invariant)
