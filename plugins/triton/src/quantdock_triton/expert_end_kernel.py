"""What kernels of experts do beside their products: the gate of w13, and the sums after w2.

Either saves a launch. A tile of w13 has the rows of gate and up in turns, so that it holds both of
what a column of its result needs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantdock_triton.encode_kernel import SILU_MUL_BF16
from quantdock_triton.gate_kernel import activated


@triton.jit
def columns_of(left, n, ORDER: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return which rows of the weight [n, K] a tile has; the last one again where there are none.

    ORDER: of gate and up, as for ``gate_pairs``: halves of the weight come in turns. "": there is
    no gate.
    """
    column = tl.minimum(left + tl.arange(0, BLOCK_N), n - 1)
    if ORDER == "gate_up":
        column = column % 2 * (n // 2) + column // 2
    return column


@triton.jit
def gated(gate, up, NAME: tl.constexpr, PTX: tl.constexpr):
    """Return the function ``NAME`` of gate and up, f32 or rounded; see ``activated``.

    "silu, rounded" rounds to the dtype of gate and up after each step, as where codes are made.
    """
    if NAME != "silu, rounded":
        return activated(gate.to(tl.float32), up.to(tl.float32), NAME)
    elif PTX and gate.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(SILU_MUL_BF16, "=r,r,r", [gate, up], dtype=tl.bfloat16,
                                         is_pure=True, pack=2)  # fmt: skip
    else:
        wide = gate.to(tl.float32)
        steep = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
        return steep * up.to(tl.float32)


@triton.jit
def store_gated(found, out, pair, is_known, left, n, NAME: tl.constexpr, ORDER: tl.constexpr,
                PTX: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """Store what w2 takes of the row of a tile with ``columns_of`` w13, rounded first.

    out: [pairs, n / 2], or [pairs, n] without a gate. is_known: whether the pair has an expert.
    """
    hidden = found.to(out.dtype.element_ty)
    if ORDER == "up":
        size, columns = n, left + tl.arange(0, BLOCK_N)
        result = activated(hidden.to(tl.float32), 1.0, NAME)
    else:
        size, columns = n // 2, left // 2 + tl.arange(0, BLOCK_N // 2)
        gate, up = tl.split(tl.reshape(hidden, [BLOCK_N // 2, 2]))
        result = gated(gate, up, NAME, PTX)
    inside = columns < tl.where(is_known, size, 0)
    at = out + pair.to(tl.int64) * size + columns
    tl.store(at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def shares_of(ids, weights, token, num_experts, TOP_K: tl.constexpr, PAIRS: tl.constexpr):
    """Return the weights of a token's pairs [PAIRS], and which of them have an expert."""
    index = tl.arange(0, PAIRS)
    at, inside = token * TOP_K + index, index < TOP_K
    sent = tl.load(ids + at, mask=inside, other=-1)
    return tl.load(weights + at, mask=inside, other=0.0).to(tl.float32), (
        (sent >= 0) & (sent < num_experts)
    )


@triton.jit
def add_up_when_last(parts, shares, has_expert, sums, counters, token, left, n,
                     TOP_K: tl.constexpr, PAIRS: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """Write a token's sum of pairs, each times its share, where this program's is the last.

    Each pair's program for some columns comes here when its part is stored, or when there is none.

    counters: zeros, one for each token and tile of columns, which are left as zeros.
    """
    tl.debug_barrier()
    counter = counters + token * tl.cdiv(n, BLOCK_N) + left // BLOCK_N
    if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == TOP_K - 1:
        tl.store(counter, 0)
        columns = left + tl.arange(0, BLOCK_N)
        rows = (token * TOP_K + tl.arange(0, PAIRS)).to(tl.int64)[:, None] * n
        inside = has_expert[:, None] & (columns < n)[None, :]
        found = tl.load(parts + rows + columns[None, :], mask=inside, other=0.0,
                        cache_modifier=".cg").to(tl.float32)  # fmt: skip
        total = tl.sum(shares[:, None] * found, axis=0)
        place = sums + token.to(tl.int64) * n + columns
        tl.store(place, total.to(sums.dtype.element_ty), mask=columns < n)
