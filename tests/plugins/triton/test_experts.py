"""Products of experts, their routing and their gates, under Triton's interpreter beside f64."""

from __future__ import annotations

import pytest
import torch

from quantdock.kernels.expert_activation import ACTIVATIONS, split_w13
from quantdock.numerics import quantize_weight
from quantdock.schemes import parse_scheme
from quantdock_triton.small_float_layout import pack_runs, pack_scale
from quantdock_triton.tile import Form, parse_tile

E = 5
ROUTES = {
    "few": torch.tensor([[3, 1]]),
    "all to one": torch.full((37, 1), 2),
    "other ranks": torch.tensor([[0, 5], [5, 5], [4, 0], [2, 5]]),
    "no expert's": torch.tensor([[-1, 3], [77, 1 << 40]]),
    "many": torch.rand(44, E, generator=torch.Generator().manual_seed(0))
    .argsort(1)[:, :3]
    .contiguous(),
}


@pytest.fixture
def modules(interpreted):
    """Return the modules of routing, products and gates, made for the interpreter."""
    names = ("route", "expert_matmul", "gate", "pair_codes")
    return [interpreted(f"quantdock_triton.{name}") for name in names]


def pairs_of(ids):
    """Return the numbers of each expert's pairs."""
    sent = ids.reshape(-1)
    return [torch.where(sent == expert)[0].tolist() for expert in range(E)]


@pytest.mark.parametrize("tile_m", [16, 32])
@pytest.mark.parametrize("ids", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("in_parts", [False, True])
def test_every_pair_is_in_one_tile_of_its_expert(
    modules, ids, tile_m, dtype, in_parts, monkeypatch
):
    if dtype == torch.int32:
        ids = ids.clamp(max=1 << 20)
    if in_parts:
        monkeypatch.setattr(modules[0], "_MOST_AT_ONCE", 0)
    made = modules[0].route(ids.to(dtype).contiguous(), E, tile_m)
    *columns, total, tiles = made.plan.split([made.num_tiles] * 3 + [1, 1])
    expected = pairs_of(ids)
    assert int(total) == sum(map(len, expected))
    found = [[] for _ in range(E)]
    for expert, first, last in zip(*(column.tolist() for column in columns), strict=True):
        if expert >= 0:
            assert last - first > 0
            found[expert] += made.order[first : min(first + tile_m, last)].tolist()
    assert found == expected
    used = [e for e in columns[0].tolist() if e >= 0]
    assert int(tiles) == len(used)
    assert columns[0].tolist() == used + [-1] * (made.num_tiles - len(used))


@pytest.mark.parametrize(
    "name, value", [("_CHUNK", (128, 128)), ("_MOST_AT_ONCE", 0), (None, None)]
)
def test_many_pairs(modules, name, value, monkeypatch):
    if name is not None:
        monkeypatch.setattr(modules[0], name, value)
    ids = torch.randint(-1, 41, (700, 3))
    made = modules[0].route(ids, 40, 16)
    sent = ids.reshape(-1)
    known = (sent >= 0) & (sent < 40)
    order = torch.where(known, sent, 40).argsort(stable=True)[: int(known.sum())]
    counts = torch.bincount(sent[known], minlength=40)
    assert made.order[: len(order)].tolist() == order.tolist()
    assert int(made.count) == len(order)
    assert int(made.plan[-1]) == sum(-(-int(number) // 16) for number in counts)
    first = (counts.cumsum(0) - counts).tolist()
    tiles = [
        (e, first[e] + start, first[e] + count)
        for e, count in enumerate(counts.tolist())
        for start in range(0, count, 16)
    ]
    tiles += [(-1,)] * (made.num_tiles - len(tiles))
    columns = made.plan[:-2].view(3, -1).T.tolist()
    assert [tuple(t) if t[0] >= 0 else (-1,) for t in columns] == tiles


def test_no_more_tiles_than_can_be_needed(modules):
    most = modules[0].most_tiles
    assert most(8, 256, 16) == 8
    assert most(2048, 256, 16) == 256 + (2048 - 256) // 16
    assert most(37, 1, 16) == 3


def run(modules, product, ids, x, n, tile_m, gathers, is_sorted=False):
    """Return (what was written, [pairs, n]; the expert of each row; the row of x of each)."""
    if ids.numel() <= 8 and not is_sorted:
        check_direct(modules, product, ids, x, n, tile_m, gathers)
    routing = modules[0].route(ids, E, tile_m)
    out = torch.full((ids.numel(), n), torch.nan)
    product(x, out, routing)
    order = torch.tensor([pair for pairs in pairs_of(ids) for pair in pairs], dtype=torch.int64)
    sent = ids.reshape(-1)
    if gathers:
        assert out[len(order) :].isnan().all()
        return out[: len(order)], sent[order], order // ids.shape[1]
    place = torch.full_like(sent, -1)
    place[order] = torch.arange(len(order))
    assert out[place < 0].isnan().all()
    return out[place >= 0], sent[place >= 0], place[place >= 0]


class Rows(tuple):
    """Codes and scales of rows of x, which are picked together."""

    def __new__(cls, *parts):
        return super().__new__(cls, parts)

    def __getitem__(self, rows):
        return Rows(*(part[rows] for part in self))


def check_direct(modules, product, ids, x, n, tile_m, gathers):
    """Assert that pairs that are tiles by themselves have the results of sorted ones."""
    order = torch.tensor([pair for pairs in pairs_of(ids) for pair in pairs], dtype=torch.int64)
    sorted_rows = torch.zeros(ids.numel(), dtype=torch.int64)
    sorted_rows[order] = torch.arange(len(order))
    expected, found = (torch.full((ids.numel(), n), torch.nan) for _ in range(2))
    product(x, expected, modules[0].route(ids, E, tile_m))
    product(x if gathers else x[sorted_rows], found, modules[0].route_directly(ids, E, tile_m))
    if gathers:
        expected = expected[sorted_rows]
    assert torch.equal(found[order], expected[order])
    others = torch.ones(ids.numel(), dtype=torch.bool)
    others[order] = False
    assert found[others].isnan().all()


SCALED = (
    # weight, x's columns of a scale, tile
    ("fp8_e4m3[128x128]", 128, "16x64x128 stages=2 swap"),
    ("fp8_e4m3[128x128]", 128, "32x128x128 stages=2"),
    ("fp8_e4m3[32x32]", 32, "16x64x128 stages=2 swap"),
    ("fp8_e4m3[1x*]", 0, "16x64x64 stages=2 swap"),
    ("fp8_e4m3[*x*]", 0, "16x32x64 stages=2"),
    ("int8[1x*]", 0, "16x64x64 stages=2 swap"),
    ("fp8_e4m3[128x128]", 128, "32x64x128 stages=2 tma"),
    ("fp8_e4m3[1x*]", 0, "16x64x64 stages=2 tma"),
)


@pytest.mark.parametrize(
    "route, gathers", [("few", True), ("other ranks", False), ("many", True), ("many", False)]
)
@pytest.mark.parametrize("text, x_cols, tile", SCALED)
def test_scaled_products(modules, text, x_cols, tile, route, gathers):
    ids, n, k = ROUTES[route], 70, 160
    spec, is_sorted = parse_scheme(text).weight, "tma" in tile
    made = [quantize_weight(torch.randn(n, k) / k**0.5, spec) for _ in range(E)]
    weight = torch.stack([w.segments[0].codes for w in made])
    scale = torch.stack([w.segments[0].scale for w in made])
    exact = torch.stack([w.dequantize() for w in made]).double()
    rows = ids.shape[0] if gathers else ids.numel()
    codes = torch.randint(-8, 9, (rows, k)).to(weight.dtype)
    x_scale = torch.rand(rows, -(-k // x_cols) if x_cols else 1) + 0.5
    wide = x_scale.repeat_interleave(x_cols or k, dim=1)[:, :k]
    x = codes.double() * wide
    form = Form(
        x_cols=x_cols,
        weight_cols=spec.cols or 0,
        weight_rows=spec.rows or 1,
        element=spec.element,
    )
    bias = torch.randn(E, n)
    parsed = parse_tile(tile)
    product = modules[1].scaled(form, parsed, n, k, True, gathers and not is_sorted, not gathers)

    def multiply(x, out, routing):
        if gathers and is_sorted:
            x = modules[3].gathered(*x, routing)
        product(*x, weight, scale, bias, out, routing)

    out, experts, of_x = run(
        modules,
        multiply,
        ids, Rows(codes, x_scale), n, parsed.m, gathers, is_sorted,
    )  # fmt: skip
    expected = torch.einsum("pk,pnk->pn", x[of_x], exact[experts]) + bias[experts]
    assert (out - expected).norm() / expected.norm() < 1e-5


def test_weights_alone(modules):
    ids, n, k = ROUTES["many"], 70, 96
    spec = parse_scheme("fp8_e4m3[1x*]").weight
    made = [quantize_weight(torch.randn(n, k), spec) for _ in range(E)]
    weight = torch.stack([w.segments[0].codes for w in made])
    scale = torch.stack([w.segments[0].scale for w in made])
    exact = torch.stack([w.dequantize() for w in made]).double()
    x = torch.randint(-8, 9, (len(ids), k)).float()
    product = modules[1].scaled(
        Form(weight_only=True), parse_tile("16x64x32 stages=2 swap"), n, k, False, True, False
    )
    out, experts, of_x = run(
        modules,
        lambda x, out, routing: product(x, None, weight, scale, None, out, routing),
        ids, x, n, 16, True,
    )  # fmt: skip
    expected = torch.einsum("pk,pnk->pn", x.double()[of_x], exact[experts])
    assert (out - expected).norm() / expected.norm() < 1e-5


@pytest.mark.parametrize(
    "has_bias, route, gathers",
    [(True, "few", True), (True, "many", False), (False, "few", False), (False, "many", True)],
)
@pytest.mark.parametrize(
    "text",
    ["fp4_e2m1[1x32]:e8m0:even", "fp4_e2m1[1x16]:e4m3:second[*x*]", "fp6_e3m2[1x32]:e8m0:even"],
)
def test_small_floats(modules, text, has_bias, route, gathers):
    from quantdock_triton.small_float_matmul import FloatTile, small_float_of

    ids, n, k = ROUTES[route], 70, 160
    spec = parse_scheme(text).weight
    kind = small_float_of(spec)
    made = [quantize_weight(torch.randn(n, k), spec) for _ in range(E)]
    segments = [w.segments[0] for w in made]
    words = torch.stack([pack_runs(s.codes, kind.packing) for s in segments])
    scale = torch.stack([pack_scale(s.scale, spec.scale, k, kind.packing) for s in segments])
    second = None
    if segments[0].second_scale is not None:
        second = torch.stack([s.second_scale.expand(n, -1).reshape(-1) for s in segments])
    exact = torch.stack([w.dequantize() for w in made]).double()
    bias = torch.randn(E, n) if has_bias else None
    x = torch.randint(-8, 9, (ids.shape[0] if gathers else ids.numel(), k)).to(torch.float16)
    product = modules[1].small_float(kind, FloatTile(m=16, n=64, stages=2), k, gathers, not gathers)
    out, experts, of_x = run(
        modules,
        lambda x, out, routing: product(x, words, scale, second, bias, out, routing),
        ids, x, n, 16, gathers,
    )  # fmt: skip
    expected = torch.einsum("pk,pnk->pn", x.double()[of_x], exact[experts])
    expected += 0 if bias is None else bias[experts]
    assert (out - expected).norm() / expected.norm() < 1e-5


@pytest.mark.parametrize(
    "folded, route, gathers",
    [(True, "few", True), (True, "many", False), (False, "few", False), (False, "many", True)],
)
@pytest.mark.parametrize(
    "text", ["int4[1x32]", "uint4[1x64]:zero", "int4[1x*]", "int8[1x32]", "uint8[1x128]:zero"]
)
def test_packed_integers(modules, text, folded, route, gathers):
    from quantdock_triton.packed_layout import pack_words, packing_of
    from quantdock_triton.packed_matmul import PackedTile

    ids, n, k = ROUTES[route], 70, 160
    spec = parse_scheme(text).weight
    packing = packing_of(spec, k)
    made = [quantize_weight(torch.randn(n, k), spec) for _ in range(E)]
    segments = [w.segments[0] for w in made]
    middle = packing.middle if spec.element.startswith("int") else 0
    words = torch.stack(
        [pack_words((s.codes.int() + middle).to(torch.uint8), packing) for s in segments]
    )
    scale = torch.stack([s.scale.T.contiguous() for s in segments])
    zero = None
    if segments[0].zero is not None:
        zero = torch.stack([s.zero.T.float().contiguous() for s in segments])
    exact = torch.stack([w.dequantize() for w in made]).double()
    bias = torch.randn(E, n)
    x = torch.randint(-8, 9, (ids.shape[0] if gathers else ids.numel(), k)).to(torch.float16)
    tile = PackedTile(m=16, n=64, words=32, stages=2, folded=folded)
    product = modules[1].packed(packing, tile, k, gathers, not gathers)
    out, experts, of_x = run(
        modules,
        lambda x, out, routing: product(x, words, scale, zero, bias, out, routing),
        ids, x, n, 16, gathers,
    )  # fmt: skip
    expected = torch.einsum("pk,pnk->pn", x.double()[of_x], exact[experts]) + bias[experts]
    assert (out - expected).norm() / expected.norm() < (1e-3 if folded else 1e-5)


@pytest.mark.filterwarnings("ignore:overflow")  # of e^-v, where the sigmoid is 0
@pytest.mark.parametrize("order", ["gate_up", "interleaved", "up"])
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("rows", [3, 70])
def test_gates(modules, name, order, rows):
    size = 40
    hidden = torch.randn(rows, size if order == "up" else 2 * size) * 4
    hidden[1, 3] = torch.nan
    ids = torch.zeros(rows, 1, dtype=torch.int64)
    ids[-1] = 1
    found = modules[2].gated(hidden, modules[0].route(ids, 1, 16), size, name, order)
    expected = ACTIVATIONS[name](*split_w13(hidden.double(), order))
    direct = modules[0].route_directly(ids, 1, 16)
    whole = modules[2].gated(hidden, direct, size, name, order)
    for result, most in ((found, rows - 1), (whole, rows)):
        assert torch.allclose(
            result[:most].double(), expected[:most], rtol=1e-4, atol=1e-5, equal_nan=True
        )


def test_sums_of_pairs(modules):
    ids = ROUTES["other ranks"]
    parts, weights = torch.randn(ids.numel(), 70), torch.rand(ids.shape)
    parts[(ids == E).reshape(-1)] = torch.nan  # nothing was written there
    found = modules[0].sum_of_pairs(
        parts, weights, ids, modules[0].route(ids, E, 16), torch.float32
    )
    terms = (parts.view(*ids.shape, 70) * weights[:, :, None]).nan_to_num(0.0)
    assert torch.allclose(found, terms.sum(1), atol=1e-5)


@pytest.mark.parametrize("gathers", [True, False])
@pytest.mark.parametrize("route", ["few", "other ranks", "many"])
def test_codes_by_each_experts_scale(modules, route, gathers):
    ids, k = ROUTES[route], 300
    routing = modules[0].route(ids, E, 16)
    order = torch.tensor([pair for pairs in pairs_of(ids) for pair in pairs], dtype=torch.int64)
    experts = ids.reshape(-1)[order]
    scales = torch.exp2(torch.randint(-1, 2, (E, 2)).float())  # so that quotients are exact
    largest = scales.amax(dim=1)
    x = torch.randint(-100, 100, (ids.shape[0] if gathers else ids.numel(), k)).float()
    direct = modules[0].route_directly(ids, E, 16)
    if gathers and ids.numel() <= 8:
        codes, found = modules[3].codes_of_pairs(x, scales, "int8", direct, gathers=True, ptx=False)
        expected = (x[order // ids.shape[1]] / largest[experts, None]).round().clamp(-128, 127)
        assert torch.equal(codes[order].float(), expected)
    codes, found = modules[3].codes_of_pairs(x, scales, "int8", routing, gathers=gathers, ptx=False)
    of_x = order // ids.shape[1] if gathers else torch.arange(len(order))
    expected = (x[of_x] / largest[experts, None]).round().clamp(-128, 127)
    assert torch.equal(codes[: len(order)].float(), expected)
    assert torch.equal(found[: len(order), 0], largest[experts])
