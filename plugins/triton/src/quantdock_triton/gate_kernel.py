"""What experts compute between their two products, in Triton, under the names that the core has."""

from __future__ import annotations

import triton
import triton.language as tl

from quantdock_triton.quantize_kernel import wait_for_kernel_before

ROOT_OF_HALF = tl.constexpr(0.7071067811865476)
ROOT_OF_8_OVER_PI = tl.constexpr(1.5957691216057308)


@triton.jit
def sigmoid(values):
    """Return 1 / (1 + e^-v)."""
    return 1.0 / (1.0 + tl.exp(-values))


@triton.jit
def activated(gate, up, NAME: tl.constexpr):
    """Return the function of gate and up (f32) that ``NAME`` stands for."""
    if NAME == "silu":
        return gate * sigmoid(gate) * up
    elif NAME == "gelu":
        return 0.5 * gate * (1.0 + tl.erf(gate * ROOT_OF_HALF)) * up
    elif NAME == "gelu_tanh":
        inner = ROOT_OF_8_OVER_PI * (gate + 0.044715 * gate * gate * gate)
        return gate * sigmoid(inner) * up
    elif NAME == "clamped_swiglu":
        gate = tl.minimum(gate, 7.0, propagate_nan=tl.PropagateNan.ALL)
        up = tl.clamp(up, -7.0, 7.0, propagate_nan=tl.PropagateNan.ALL)
        return gate * sigmoid(1.702 * gate) * (up + 1.0)
    else:
        tl.static_assert((NAME == "relu") or (NAME == "relu2"))
        positive = tl.maximum(gate, 0.0, propagate_nan=tl.PropagateNan.ALL)
        if NAME == "relu2":
            positive *= positive
        return positive * up


@triton.jit(do_not_specialize=["num_rows"])
def gate_pairs(hidden, out, count, num_rows, size, NAME: tl.constexpr, ORDER: tl.constexpr,
               ROWS: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """Write what w2 takes, [rows, size], of what w13 returned, for the first ``count[0]`` rows.

    count: None: all ``num_rows`` of them.
    ORDER: of the columns of ``hidden``: "gate_up", "interleaved", or "up", which has no gate.
    """
    if EARLY:
        wait_for_kernel_before()
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    columns = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH))[None, :]
    if count is not None:
        num_rows = tl.load(count)
    inside = (rows < num_rows) & (columns < size)
    rows = rows.to(tl.int64)
    if ORDER == "interleaved":
        both = (tl.program_id(1) * (2 * WIDTH) + tl.arange(0, 2 * WIDTH))[None, :]
        is_there = (rows < num_rows) & (both < 2 * size)
        pairs = tl.load(hidden + rows * (2 * size) + both, mask=is_there, other=0.0)
        gate, up = tl.split(tl.reshape(pairs, [ROWS, WIDTH, 2]))
        result = activated(gate.to(tl.float32), up.to(tl.float32), NAME)
    elif ORDER == "gate_up":
        at = hidden + rows * (2 * size) + columns
        gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(at + size, mask=inside, other=0.0).to(tl.float32)
        result = activated(gate, up, NAME)
    else:
        gate = tl.load(hidden + rows * size + columns, mask=inside, other=0.0).to(tl.float32)
        result = activated(gate, 1.0, NAME)
    tl.store(out + rows * size + columns, result.to(out.dtype.element_ty), mask=inside)
