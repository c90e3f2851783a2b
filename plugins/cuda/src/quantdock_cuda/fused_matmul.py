"""Launching ``fused_kernel``: which layers it takes, and how their work is divided."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

import torch
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from quantdock.formats import QuantSpec
from quantdock_cuda import fused_input, fused_kernel
from quantdock_cuda.block_matmul import GROUP, LAYOUT, STEP, registers_of
from quantdock_cuda.device import Device, device_of
from quantdock_triton.encoding import Encoding
from quantdock_triton.launcher import ALIGNMENT, Launcher, is_aligned
from quantdock_triton.programs import key_of
from quantdock_triton.tile import Form, Tile

MOST_ROWS = 16  # of x: the widest product is that of a tile of 16 columns
AT_ONCE: int = fused_input.AT_ONCE.value
_MULTIPROCESSOR_BYTES = 228 << 10  # of shared memory; a program takes 1 KiB beside its own
_RESERVED = 1 << 10
_BESIDE = 2 << 10  # bytes beside stages, codes and sums: barriers, and what layouts go through
_MOST_STAGES = 16
_LEAST_STAGES = 12  # of a multiprocessor, so that enough of the weights is under way
_MOST_AHEAD = 8  # pieces of x that are read at once
_LEAST_STEPS = 4  # of a part of a sum
_MANY = 0.7  # of the multiprocessors that are to have work
# Steps of so many rows that a program quantizes, up to which that was seen to take less time than a
# kernel of its own: 28 of 16 rows took as long, and more than 32 of 8 have not been measured.
_MOST_STEPS = {1: 1 << 16, 8: 32, 16: 20}
_FEATURES = frozenset({"wgmma", "tma", "dependent_launch"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a group of warps quantizes x, in pieces: a step, or 8 steps of one row."""

    is_grouped: bool  # each step has scales; else there is one a row
    is_whole: bool  # there is one for all of x
    pieces: int  # whose codes are kept
    ahead: int  # of them that are read at once
    all_pieces: int  # of x
    all_ahead: int


def plan_of(form: Form, spec: QuantSpec, tile: Tile, k: int, rows: int) -> Plan:
    """Return the plan for so many rows of K columns."""
    steps, at_once = -(-k // STEP), AT_ONCE if rows == 1 else 1
    mine = 2 * ceil(ceil(steps / tile.parts) / (2 * tile.slices))
    pieces = -(-mine // at_once)
    ahead = max(number for number in range(1, _MOST_AHEAD + 1) if pieces % number == 0)
    all_pieces = -(-steps // at_once)
    return Plan(
        is_grouped=form.is_grouped,
        is_whole=spec.granularity == "tensor",
        pieces=pieces,
        ahead=ahead,
        all_pieces=all_pieces,
        all_ahead=min(all_pieces, _MOST_AHEAD),
    )


def fitted(tile: Tile, plan: Plan, rows: int, shared_bytes: int) -> Tile | None:
    """Return the tile with as many stages as there is memory for; None if that is too little.

    Groups that take turns at the steps each have stages of their own: one that waited for a stage
    of the other could take an earlier copy for the one it waits for.
    """
    slots = tile.slices * plan.pieces * (AT_ONCE if rows == 1 else 1)
    sums = (tile.slices - 1) * GROUP * tile.m * 4
    used = slots * (tile.m * STEP + 4 * rows) + sums + _BESIDE
    room = min(_MULTIPROCESSOR_BYTES // tile.resident - _RESERVED, shared_bytes) - used
    stages = min(room // (tile.n * STEP), _MOST_STAGES) // tile.slices * tile.slices
    return replace(tile, stages=stages) if stages * tile.resident >= _LEAST_STAGES else None


class FusedMatmul:
    """``x @ weight.T`` of x [M, K] in 16 bits, M <= 16, and fp8 weights; made by ``matmul``."""

    def __init__(
        self,
        form: Form,
        spec: QuantSpec,
        tile: Tile,
        plan: Plan,
        rows: int,
        n: int,
        k: int,
        num_static: int,
        has_bias: bool,
    ) -> None:
        self._n, self._k, self._tile = n, k, tile
        self.counts = tile.parts > 1  # whether sums are divided, which counters are needed for
        self._steps, self._tiles = -(-k // STEP), -(-n // tile.n)
        encoding = Encoding(spec, k, True)
        spec_of = (*encoding.scale, *encoding.range)
        registers, others = registers_of(tile)
        options = {"num_warps": 4, "maxnreg": registers, "launch_pdl": True}
        same = replace(tile, parts=1)  # how many there are is no constant of the kernel
        constants = (same, plan, rows, form.weight_rows, num_static, spec_of, has_bias)
        self._launch = Launcher(
            fused_kernel.fused_matmul, (*constants, tile.parts > 1, others), **options
        )

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        weight_scale: Tensor,
        input_scale: Tensor | None,
        bias: Tensor | None,
        out: Tensor,
        counters: Tensor | None,
    ) -> None:
        """Write the product to ``out`` [M, N]; columns of x are side by side."""
        tile, parts, stride = self._tile, self._tile.parts, x.stride(0)
        num_items = self._tiles * parts
        most = tile.resident * device_of(x.get_device()).num_sms // parts * parts
        partial = None
        if parts > 1:
            shape = (num_items, tile.m * tile.n)
            partial = torch.empty(shape, dtype=torch.float32, device=x.device)
        counters = counters if self.counts else None
        codes = TensorDescriptor(weight, [self._n, self._k], [self._k, 1], [tile.n, STEP], LAYOUT)
        row = weight_scale.stride(0) if weight_scale.shape[0] > 1 else 0
        self._launch(
            (*key_of(x, stride), out.dtype, is_aligned(out), is_aligned(weight_scale),
             is_aligned(input_scale), None if bias is None else (bias.dtype, is_aligned(bias))),
            (min(num_items, most), 1),
            x, codes, out, weight_scale, input_scale, bias, partial, counters,
            out.shape[0], self._n, self._k, self._steps, stride, row, parts, num_items,
        )  # fmt: skip


def rows_of(m: int) -> int:
    """Return how many rows stand for ``m``: those of a tile, but one, which is quantized faster."""
    return next(rows for rows in (1, 8, MOST_ROWS) if rows >= m)


def takes(
    form: Form, spec: QuantSpec, device: Device, k: int, rows: int, dtype: torch.dtype
) -> bool:
    """Return whether the kernel computes a layer, and sooner than two kernels would."""
    one_scale = not form.is_grouped and form.weight_rows == 1 and (rows == 1 or not spec.dynamic)
    groups = (form.x_cols, form.weight_cols) == (STEP, STEP) and form.weight_rows % GROUP == 0
    return (
        (one_scale or groups)
        and device.features >= _FEATURES
        and not form.weight_only
        and (form.element, spec.element) == ("fp8_e4m3", "fp8_e4m3")
        and dtype in (torch.bfloat16, torch.float16)
        and k % ALIGNMENT == 0
    )


@lru_cache(maxsize=4096)
def matmul(
    form: Form,
    spec: QuantSpec,
    device: Device,
    n: int,
    k: int,
    rows: int,
    num_static: int,
    dtype: torch.dtype,
    has_bias: bool,
) -> FusedMatmul | None:
    """Return what multiplies up to ``rows`` rows by weights [n, k]; None: take two kernels."""
    if not takes(form, spec, device, k, rows, dtype):
        return None
    for tile in tiles(device, n, k, rows):
        if ceil(k / STEP / tile.parts) > _MOST_STEPS[rows]:
            continue
        plan = plan_of(form, spec, tile, k, rows)
        made = fitted(tile, plan, rows, device.shared_bytes)
        if made is not None:
            return FusedMatmul(form, spec, made, plan, rows, n, k, num_static, has_bias)
    return None


def tiles(device: Device, n: int, k: int, rows: int) -> Iterator[Tile]:
    """Yield tiles, best first: a program for each place that the GPU has, or nearly so.

    Sums are divided only where programs would be few; of the ways to do so the one that copies
    least, as a part is copied in whole rounds of all groups.
    """
    sms, count, steps = device.num_sms, -(-n // GROUP), -(-k // STEP)
    tile = Tile(m=max(rows, 8), n=GROUP, k=STEP, slices=2, swap=True, roles=True)
    if count > 2 * sms and rows == 1:
        yield replace(tile, resident=3, slices=1)
    if count > sms and rows < MOST_ROWS:  # two that quantize 16 take longer than one
        yield replace(tile, resident=2)
    most = max(min(sms // count, steps // _LEAST_STEPS), 1)
    few = [parts for parts in range(1, most + 1) if parts == most or parts * count >= _MANY * sms]
    yield replace(tile, parts=min(few, key=lambda parts: (parts * ceil(steps / parts / 4), -parts)))
