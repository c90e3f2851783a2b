"""Weight-only 4-bit integers through torch's own CPU kernel: a quarter of the time for one token.

``aten::_weight_int4pack_mm_for_cpu`` computes ``scale * (code - 8) + shift`` as it reads the codes,
with f32 sums. Its scales and shifts must have x's dtype, bfloat16, so each weight is off by up to
2^-9 of itself and, with zero points, by 2^-9 of the shift; an input multiplier's product with x is
rounded too. The exact f32 scales stay beside them:
for going back, and for activations of other dtypes, which take the reference path.

Columns in act-order are sorted by group when the weight is prepared, and x follows them at each
call. Where that cannot be (unequal groups; fused shards of different orders), or where the machine
fails the self-test, the tensors are the reference's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import gcd, inf

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import ELEMENTS
from quantdock.kernels.int4_blocks import ROWS, block_height, pack_blocks, unpack_blocks
from quantdock.kernels.layout import Grid, codes_of, grid_with, to_grid
from quantdock.kernels.ops import define
from quantdock.kernels.scaled_linear import (
    NAMES,
    SIGNATURE,
    ScaledLinear,
    empty_result,
    gradient_of_input,
    result_shape,
    scaled_linear,
)
from quantdock.kernels.stored_inputs import stored_inputs
from quantdock.numerics import CanonicalWeight, torch_dtype
from quantdock.schemes import parse_scheme

GROUPS = (256, 128, 64, 32)  # columns of a group that torch's kernel takes
COLUMNS = 32  # K must be a multiple
MIDDLE = 8  # the kernel's own zero point
# Rows of x from which the reference is faster, although it must unpack the codes first; by the
# height of blocks, which is 32 without AVX-512. docs/benchmarks/cpu.md
MOST_ROWS = {32: 192}
# The name says for which instructions the blocks are laid out: they never leave the machine.
_ANY_BLOCKS = "weight_blocks_"
BLOCKS = _ANY_BLOCKS + torch.backends.cpu.get_cpu_capability().lower()
AFFINE = "weight_affine"
MULTIPLIER = "input_multiplier"
BLOCK_NAMES = (BLOCKS, AFFINE, "weight_scale", "weight_zero", "weight_order", MULTIPLIER)


class Int4Pack(ScaledLinear):
    """Runs weights of 3 and 4 bits with scales per channel or group, and bfloat16 activations."""

    def prepare(self, weight: CanonicalWeight) -> dict[str, Tensor]:
        """Return the plain layout's tensors with blocks in place of ``weight``.

        ``weight_blocks_avx2`` or the like, uint8 [N, K / 2], as this processor wants them;
        ``weight_affine`` bfloat16 [groups, N, 2], scales and shifts.
        """
        grid = to_grid(weight, self.problem.scheme.weight)
        if not _can_take(grid):
            return super().prepare(weight)
        codes = codes_of(grid).to(torch.int16) + _offset(grid.spec.element)
        tensors = grid.tensors()
        del tensors["weight"]
        return {
            BLOCKS: pack_blocks(codes.to(torch.uint8)),
            AFFINE: _affine(grid),
            **tensors,
            **stored_inputs(self.problem.scheme, weight),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the weight that ``prepare`` got, bit for bit."""
        if "weight" not in tensors:
            _require_own(tensors)
            tensors = plain_tensors(tensors, self._scheme)
        return super().restore(tensors)

    def apply(self, tensors: Mapping[str, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``x @ weight.T + bias``; x is [..., K] of any strides, the result in its dtype.

        Raises:
            FormatError: the blocks were laid out for other instructions than this process uses.
        """
        if "weight" in tensors:
            return super().apply(tensors, x, bias)
        _require_own(tensors)
        given = [tensors.get(name) for name in BLOCK_NAMES]
        return INT4_PACK(x, given, bias, self._scheme, self._k(tensors), self._sizes)

    def _k(self, tensors: Mapping[str, Tensor]) -> int:
        return 2 * tensors[BLOCKS].shape[1] if BLOCKS in tensors else super()._k(tensors)


def int4_pack(
    x: Tensor,
    tensors: Sequence[Tensor | None],
    bias: Tensor | None,
    scheme: str,
    k: int,
    sizes: Sequence[int],
) -> Tensor:
    """Return the layer's result; this is the op ``quantdock::int4_pack``.

    Args:
        tensors: as BLOCK_NAMES has them.
    Raises:
        FormatError: x does not end in K columns.
    """
    named = {n: t for n, t in zip(BLOCK_NAMES, tensors, strict=True) if t is not None}
    blocks, affine = named[BLOCKS], named[AFFINE]
    shape = result_shape(x, blocks.shape[0], k)
    if shape.numel() == 0:
        return x.new_empty(shape)
    if x.dtype != torch.bfloat16 or shape[:-1].numel() > _most_rows():
        plain = plain_tensors(named, scheme)
        return scaled_linear(x, [plain.get(name) for name in NAMES], bias, scheme, k, sizes)
    rows = x.reshape(shape[:-1].numel(), k)
    if MULTIPLIER in named:
        rows = (rows * named[MULTIPLIER]).to(x.dtype)
    if (order := named.get("weight_order")) is not None:
        rows = rows.index_select(1, order[0])
    sums = _product(rows, blocks, affine)
    if bias is not None:
        sums = sums.float().add_(bias).to(x.dtype)
    return sums.view(shape)


def plain_tensors(tensors: Mapping[str, Tensor], scheme: str) -> dict[str, Tensor]:
    """Return the tensors of the reference layout."""
    spec = parse_scheme(scheme).weight
    codes = unpack_blocks(tensors[BLOCKS]).to(torch.int16) - _offset(spec.element)
    kept = {name: tensors[name] for name in (MULTIPLIER,) if name in tensors}
    grid = grid_with(
        codes.to(torch_dtype(ELEMENTS[spec.element].storage)),
        tensors["weight_scale"],
        spec,
        (),
        zero=tensors.get("weight_zero"),
        order=tensors.get("weight_order"),
    )
    return {**grid.tensors(), **kept}


def _require_own(tensors: Mapping[str, Tensor]) -> None:
    """Raise FormatError if there are blocks, and of another processor."""
    if BLOCKS not in tensors:
        found = [name for name in tensors if name.startswith(_ANY_BLOCKS)]
        raise FormatError(
            "A weight is laid out for another processor than this one.",
            why=[f"it has {', '.join(found) or 'no blocks'}; here they are called {BLOCKS}"],
            todo="Load the checkpoint on this machine, and save with save_pretrained.",
        )


def _can_take(grid: Grid) -> bool:
    """Return whether torch's kernel is right here, for a weight that lies like this."""
    one_order = grid.order is None or grid.order.shape[0] == 1
    return (
        grid.codes.device.type == "cpu"
        and grid.codes.shape[0] % ROWS == 0
        and _group(grid) is not None
        and grid.group is None
        and one_order
        and agrees_with_definition()
    )


def _group(grid: Grid) -> int | None:
    """Return the columns of a group for torch's kernel; a wider group is some of its groups."""
    columns = grid.k if grid.scale.shape[1] == 1 else gcd(grid.tile_columns, grid.k)
    return next((size for size in GROUPS if columns % size == 0), None)


def _offset(element: str) -> int:
    """Return what is added to a code to be stored: codes lie around MIDDLE, so shifts are small."""
    kind = ELEMENTS[element]
    return MIDDLE if kind.storage == "int8" else MIDDLE - (1 << kind.bits - 1)


def _affine(grid: Grid) -> Tensor:
    """Return scales and shifts, bfloat16 [groups, N, 2]: ``scale * (code - MIDDLE) + shift``."""
    group, n = _group(grid), grid.codes.shape[0]
    assert group is not None, "_can_take looked"
    columns = grid.k if grid.scale.shape[1] == 1 else grid.tile_columns
    zero = 0 if grid.zero is None else grid.zero.to(torch.float32)
    shift = grid.scale * (MIDDLE - _offset(grid.spec.element) - zero)
    both = torch.stack([grid.scale, shift], dim=2).to(torch.bfloat16)
    both = both.repeat_interleave(columns // group, dim=1)[:, : grid.k // group]
    return both.expand(n, -1, -1).transpose(0, 1).contiguous()


def _most_rows() -> float:
    height = block_height()
    return inf if height is None else MOST_ROWS.get(height, inf)


def _product(rows: Tensor, blocks: Tensor, affine: Tensor) -> Tensor:
    group = rows.shape[1] // affine.shape[0]
    return torch._weight_int4pack_mm_for_cpu(rows.contiguous(), blocks, group, affine)


@cache
def agrees_with_definition() -> bool:
    """Return whether torch's kernel is right on this processor, tried once on every code."""
    if block_height() is None:
        return False
    random = torch.Generator(device="cpu").manual_seed(1)
    codes = torch.randint(16, (144, 128), generator=random, dtype=torch.uint8, device="cpu")
    rows = torch.linspace(-3.0, 3.0, 3 * 128, device="cpu").view(3, -1).to(torch.bfloat16)
    affine = torch.rand((2, 144, 2), generator=random, device="cpu").to(torch.bfloat16)
    scale, shift = (a.T.repeat_interleave(64, dim=1).double() for a in affine.unbind(2))
    expected = rows.double() @ (scale * (codes.double() - MIDDLE) + shift).T
    error = (_product(rows, pack_blocks(codes), affine).double() - expected).abs().amax()
    return bool(error <= 2.0**-8 * expected.abs().amax())


def _gradient(
    gradient: Tensor,
    tensors: Sequence[Tensor | None],
    bias: Tensor | None,
    scheme: str,
    k: int,
    sizes: Sequence[int],
) -> Tensor:
    """Return the gradient of x; it goes through the exact weight, whose scales are f32."""
    named = {n: t for n, t in zip(BLOCK_NAMES, tensors, strict=True) if t is not None}
    plain = plain_tensors(named, scheme)
    given = [plain.get(name) for name in NAMES]
    return gradient_of_input(gradient, given, bias, scheme, k, sizes)


INT4_PACK = define("int4_pack", SIGNATURE, int4_pack, empty_result, _gradient)
