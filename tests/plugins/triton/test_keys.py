"""Launchers' keys tell apart all that Triton compiles a kernel anew for.

Kernels are looked up by keys that callers make, past Triton's look at every argument, so a key that
lacks something runs the kernel of another call: one that reads 16 bytes at once where they are not
aligned, or that has the stride 1 of one row built in.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from quantdock.formats import parse_spec
from quantdock.schemes import parse_scheme
from quantdock_triton import (
    expert_matmul,
    expert_pairs,
    gather,
    matmul,
    normalize,
    pair_codes,
    route,
    widen,
)
from quantdock_triton import packed_matmul as packed
from quantdock_triton.expert_ends import Sums
from quantdock_triton.launcher import Launcher
from quantdock_triton.packed_layout import packing_of
from quantdock_triton.small_float_matmul import FloatTile, SmallFloat
from quantdock_triton.tile import Form, Tile

E, N, K, T = 4, 96, 128, 2
F32, BF16, FP8, I16 = torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int16
BLOCK = parse_scheme("fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic").activation
BOTH = (0, 1)  # values after an aligned address


class Seen:
    """What Triton specializes kernels for, by launcher and key."""

    def __init__(self):
        self._backend = make_backend(GPUTarget("cuda", 90, 32))
        self._known = {}

    def launch(self, launcher, key, grid, *arguments):
        kernel = launcher._kernel
        specialized = create_function_from_signature(
            kernel.signature, kernel.params, self._backend
        )(*arguments, *launcher._constants)[1]
        found = dict(zip(kernel.arg_names, specialized[: len(arguments)], strict=False))
        for without in ("counters", "partial"):  # not read where sums are not divided
            found.pop(without, None)
        assert self._known.setdefault((launcher, key), found) == found

    @property
    def number(self):
        return len(self._known)


@pytest.fixture
def seen(monkeypatch):
    found = Seen()
    monkeypatch.setattr(Launcher, "__call__", lambda self, *given: found.launch(self, *given))
    return found


def at(offset, dtype, *shape):
    """Return zeros that start so many values after an aligned address."""
    size = torch.Size(shape).numel()
    memory = torch.zeros(size + 32, dtype=dtype)
    start = -memory.data_ptr() % 16 // dtype.itemsize + offset
    return memory[start : start + size].view(shape)


def inputs(dtype, k=K, rows=T):
    """Yield x [rows, k] or one row: aligned and not, with strides that Triton tells apart."""
    for offset, more in product(BOTH, (0, 1)):
        yield at(offset, dtype, rows * (k + 16 + more)).as_strided((rows, k), (k + 16 + more, 1))
    yield at(0, dtype, 1, k).as_strided((1, k), (1, 1))


def routings():
    """Yield pairs that are sorted or not, of ids of each dtype, aligned or not."""
    for dtype, offset in product((torch.int64, torch.int32), BOTH):
        for make in (route.route, route.route_directly):
            yield make(at(offset, dtype, T, 2), E, 16)


def form(element="fp8_e4m3", **more):
    return Form(element=element, **more)


def test_norms(seen):
    run = normalize.normalizer(BLOCK, K)
    others = [None, *inputs(BF16), at(0, F32, T, K), at(1, F32, T, K)]
    for x, residual, w in product(inputs(BF16), others, BOTH):
        if residual is None or len(residual) == len(x):
            run(x, at(w, BF16, K), 1e-6, None, residual)
    assert seen.number > 16


@pytest.mark.parametrize("alone", [False, True])
def test_scaled(seen, alone):
    tile, run_of = Tile(m=16, n=64, k=64 if alone else 128, stages=2), matmul.matmul
    run = run_of(form(weight_only=alone), tile, N, K, True)
    for x, w, s, b in product(inputs(BF16 if alone else FP8), BOTH, BOTH, BOTH):
        scale = None if alone else at(s, F32, len(x), 1)
        given = at(w, FP8, N, K), at(s, F32, N, 1), at(b, BF16, N)
        run(x, scale, *given, torch.empty(len(x), N, dtype=BF16))
    assert seen.number > 8


def test_widened(seen):
    for w, s in product(BOTH, BOTH):
        widen.widener(form(weight_only=True), N, K)(at(w, FP8, N, K), at(s, F32, N, 1), BF16)
    assert seen.number == 4


@pytest.mark.parametrize("zero", [False, True])
def test_packed(seen, zero):
    packing = packing_of(parse_spec("int4[1x64]"), K)
    shape = (*packing.blocks(N, K), 64, packing.plane)
    tile = packed.PackedTile(m=16, n=64, words=16)
    for x, w, s in product(inputs(BF16), BOTH, BOTH):
        scale = at(s, F32, 2, N)
        weight = packed.PackedWeight(
            words=at(w, I16, *shape), scale=scale, zero=scale if zero else None, last=N
        )
        packed.matmul(packing, tile, K)(x, weight, None, torch.empty(len(x), N, dtype=BF16))
        packed.unpack(packing, K)(weight, torch.empty(N, K, dtype=BF16))
    assert seen.number > 8


def test_experts(seen):
    block = form(x_cols=0)
    tile = Tile(m=16, n=64, k=128, stages=2)
    run = expert_matmul.scaled(block, tile, N, K, True, True, False)
    pairs = expert_pairs.scaled(block, BLOCK, tile, N, K, False, True, True)
    for routing, b, (x, codes) in product(
        routings(), BOTH, list(zip(inputs(BF16), inputs(FP8), strict=True))
    ):
        rest = at(0, FP8, E, N, K), at(b, F32, E, N, 1), at(b, BF16, E, N)
        out = torch.empty(T * 2, N, dtype=BF16)
        run(codes, at(b, F32, len(x), 1), *rest, out, routing)
        if routing.is_direct:
            sums = Sums(result=out[:1], weights=at(b, F32, 1, 2), counters=at(0, torch.int32, 64))
            for end in (None, sums):
                pairs(x, *rest, out, routing, end)
    assert seen.number > 16


def test_experts_of_weights_alone(seen):
    kind = SmallFloat(element="fp4_e2m1", group=16, scale="e4m3")
    small = expert_matmul.small_float(kind, FloatTile(m=16, n=64), K, True, True)
    packing, tile = packing_of(parse_spec("int4[1x64]"), K), packed.PackedTile(m=16, n=64, words=16)
    integers = expert_matmul.packed(packing, tile, K, True, True)
    for routing, x, b in product(routings(), inputs(BF16), BOTH):
        out, bias = torch.empty(T * 2, N, dtype=BF16), at(b, BF16, E, N)
        words = at(b, I16, E, N, K // 4), at(b, torch.uint8, E, N, K // 16), at(b, F32, E, N)
        small(x, *words, bias, out, routing)
        scale = at(b, F32, E, 2, N)
        words = at(b, I16, E, *packing.blocks(N, K), 64, packing.plane)
        integers(x, words, scale, None, bias, out, routing)
    assert seen.number > 16


def test_codes_of_pairs(seen):
    for routing, x, s in product(routings(), inputs(BF16), BOTH):
        given = at(s, F32, E, 1), "fp8_e4m3", routing
        pair_codes.codes_of_pairs(x, *given, gathers=True, ptx=False)
        pair_codes.gathered(at(0, FP8, T, K), at(s, F32, T, 1), routing)
        if not routing.is_direct:
            gather.rows_of_pairs(x, routing)
    assert seen.number > 16
