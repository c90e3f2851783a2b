"""Launching ``expert_pairs_kernel``: what is fixed for a layer is worked out once."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from quantdock.formats import QuantSpec
from quantdock_triton import matmul
from quantdock_triton.encoding import Encoding
from quantdock_triton.expert_ends import NO_GATE, Gate, Sums, arguments_of
from quantdock_triton.expert_pairs_kernel import scaled_pairs
from quantdock_triton.launcher import Launcher, is_aligned, launch_options
from quantdock_triton.programs import key_of, power_above
from quantdock_triton.route import Routing
from quantdock_triton.tile import Form, Tile

# Steps of a row, which are the rows of an operand: tensor cores take no fewer, and for more their
# products, of which only one in so many counts, would take longer than the weights.
_STEPS = (16, 64)
_WEIGHTS_ALONE = (0.0, 0.0, False, 1.0, -1)  # in place of what an encoding has


def takes(form: Form, spec: QuantSpec | None, tile: Tile, k: int) -> bool:
    """Return whether the kernel computes products of this form, with x quantized by ``spec``.

    A step is quantized as a whole, so its columns have one scale; None: x is multiplied as it is.
    """
    if _steps(form, tile, k) > _STEPS[1]:
        return False
    if spec is None:
        return form.weight_only
    return spec.dynamic and form.x_cols in (0, form.block_k(tile.k)) and not form.weight_only


def _steps(form: Form, tile: Tile, k: int) -> int:
    return max(power_above(-(-k // form.block_k(tile.k))), _STEPS[0])


class ScaledPairs:
    """Products of x in 16 bits with scaled codes [E, N, K], each pair a tile; by ``scaled_pairs``.

    Args:
        spec: by which x is quantized; None: not at all. ptx: as for ``quantizer``.
        gathers: x has a row for each token; else one for each pair.
    """

    def __init__(
        self,
        form: Form,
        spec: QuantSpec | None,
        tile: Tile,
        n: int,
        k: int,
        *,
        ptx: bool,
        has_bias: bool,
        gathers: bool,
        gate: Gate,
    ) -> None:
        self._n, self._k, self._across = n, k, -(-n // tile.n)
        self._is_widened, self._gate = form.weight_only, gate
        tile = replace(tile, m=_steps(form, tile, k))
        values: tuple[object, ...] = _WEIGHTS_ALONE
        if spec is not None:
            encoding = Encoding(spec, k, ptx)
            values = (*encoding.range, *encoding.scale)
        self._constants = (*matmul.constants_of(form, tile, k, has_bias), values, gathers)
        self._options = {"num_warps": tile.warps, "num_stages": tile.stages}
        self._launchers: dict[tuple[bool, int], Launcher] = {}

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None,
        out: Tensor,
        routing: Routing,
        sums: Sums | None = None,
    ) -> None:
        """Write the products to ``out`` [pairs, N], or what ``gate`` makes of them; see Sums.

        Shapes:
            x: [rows, K], columns side by side; the others as for ``ScaledExperts``.
        """
        assert routing.is_direct, "sorted pairs have tiles of their own"
        expert, row, group = weight_scale.stride()
        row, group = (0, 1) if weight_scale.shape[1] == 1 else (row, group)
        stride, codes = x.stride(0), weight.view(torch.uint8) if self._is_widened else weight
        self._launcher(routing.early, 0 if sums is None else sums.top_k)(
            (*key_of(x, stride), out.dtype, *routing.key, is_aligned(weight), is_aligned(out),
             expert, row, group, is_aligned(weight_scale),
             None if bias is None else (bias.dtype, is_aligned(bias)), sums and sums.key),
            (routing.num_tiles * self._across, 1),
            x, codes, out, weight_scale, bias, routing.plan, *arguments_of(sums),
            routing.num_experts, routing.top_k, self._n, self._k, stride, expert, row, group,
        )  # fmt: skip

    def _launcher(self, early: bool, top_k: int) -> Launcher:
        found = self._launchers.get((early, top_k))
        if found is None:
            constants = (*self._constants, *self._gate.constants, top_k, power_above(top_k), early)
            options = self._options | launch_options(early, self._options["num_warps"])
            found = self._launchers[early, top_k] = Launcher(scaled_pairs, constants, **options)
        return found


@lru_cache(maxsize=4096)
def scaled(
    form: Form,
    spec: QuantSpec | None,
    tile: Tile,
    n: int,
    k: int,
    ptx: bool,
    has_bias: bool,
    gathers: bool,
    gate: Gate = NO_GATE,
) -> ScaledPairs:
    """Return what multiplies pairs by experts' weights [n, k] of ``form`` in tiles of ``tile``."""
    return ScaledPairs(
        form, spec, tile, n, k, ptx=ptx, has_bias=has_bias, gathers=gathers, gate=gate
    )
