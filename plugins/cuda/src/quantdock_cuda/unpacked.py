"""Products of weights of fp8_e4m3 alone, by the kernel of packed codes, from the plain layout.

Two neighbouring codes are a word, so a plane is every other column: x is put in that order at each
call, in blocks of 128 columns.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from quantdock_cuda.device import Device
from quantdock_cuda.packed_matmul import RolesForm, RolesMatmul, RolesTile
from quantdock_cuda.packed_tiling import has_roles, roles_tile, rows_of_bucket
from quantdock_triton.deal import deal
from quantdock_triton.packed_layout import Packing
from quantdock_triton.packed_matmul import PackedWeight
from quantdock_triton.tile import Form

PLANE, PLANES = 64, 2  # columns of a block that lie at one place of their words, and places


UNPACK = "unpack"  # the way's name


def unpacks(form: Form, device: Device, n: int, k: int, m: int) -> bool:
    """Return whether ``m`` rows of a layer [N, K] are best multiplied so on a GPU."""
    return (
        form.weight_only
        and form.element == "fp8_e4m3"
        and form.weight_cols % PLANE == 0
        and k % (PLANE * PLANES) == 0
        and has_roles(_packing(form), device, n, k, m)
    )


def _packing(form: Form) -> Packing:
    return Packing(bits=8, plane=PLANE, group=form.weight_cols)


class Unpacked:
    """``x @ weight.T`` for layers [N, K] of one form on one GPU; made by ``unpacked``."""

    def __init__(self, form: Form, device: Device, n: int, k: int) -> None:
        self._form, self._device, self._n, self._k = form, device, n, k
        self._packing = _packing(form)
        self._early = "dependent_launch" in device.features

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None,
        out: Tensor,
        counters: Tensor | None,
    ) -> None:
        """Write the product to ``out``.

        Shapes:
            x: bfloat16 or float16 [M, K], M >= 1, columns side by side. weight: [N, K].
            weight_scale: f32 [1 or N / rows, 1 or groups]. bias: [N]. out: [M, N].
        """
        rows = rows_of_bucket(x.shape[0])
        tile = roles_tile(self._packing, self._device, self._n, self._k, rows)
        words = weight.view(torch.int16)
        given = PackedWeight(words=words, scale=weight_scale, zero=None, last=self._n)
        self._matmul(tile)(deal(x, PLANE, early=self._early), given, bias, out, counters)

    def _matmul(self, tile: RolesTile) -> RolesMatmul:
        return _matmul(self._form, tile, self._k, self._device.num_sms)


@lru_cache(maxsize=4096)
def _matmul(form: Form, tile: RolesTile, k: int, num_sms: int) -> RolesMatmul:
    per_group = form.weight_cols // PLANE
    made = RolesForm(
        bits=8,
        plane=PLANE,
        per_group=per_group,
        m=tile.m,
        groups=tile.groups,
        stages=tile.stages,
        taken=tile.taken,
        x_stages=tile.x_stages,
        folded=tile.folded and per_group > 0,
        is_float=True,
        is_plain=True,
        scale_rows=form.weight_rows,
    )
    return RolesMatmul(made, tile, k, num_sms)


@lru_cache(maxsize=4096)
def unpacked(form: Form, device: Device, n: int, k: int) -> Unpacked:
    """Return what multiplies by weights [n, k] of ``form``."""
    return Unpacked(form, device, n, k)
