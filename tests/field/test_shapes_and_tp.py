"""Shapes of the field: S09, S43 - partial blocks, and blocks that never span two parts.

With several ranks also S20, S45, S47: act-order, long sums, and the bias of divided inputs.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import quantdock
from quantdock.config import QuantizationConfig
from quantdock.layers import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    RowParallelLinear,
)
from quantdock.methods.slot import Slot
from quantdock.numerics import CanonicalWeight, Segment
from quantdock.schemes import Decision, parse_scheme
from toy_llama import (
    BLOCK,
    DOWN,
    GATE,
    UP,
    codes,
    dense,
    llama,
    load,
    make_layer,
    run,
    write,
)
from toy_ranks import config_of, filled, ranks, relative, weight_of

# The second quantizes no activations: a described device runs fp8 weights so, by plain torch.
PLATFORMS = {"8 bits": "cpu", "16 bits": "cuda:sm_80"}
GRID = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def expand(scale, n, k):
    return scale.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]


@pytest.mark.parametrize("intermediate", [192, 320])
def test_s09_a_width_that_is_no_multiple_of_the_block(tmp_path, intermediate):
    """One rank; divided among several below."""
    tensors = llama("128x128", intermediate)
    generator = torch.Generator().manual_seed(5)
    expected = {}
    for name, (n, k) in {
        GATE: (intermediate, 256),
        UP: (intermediate, 256),
        DOWN: (256, intermediate),
    }.items():
        grid = torch.arange(1.0, 1 + -(-n // 128) * -(-k // 128)).view(-(-n // 128), -1)
        stored = torch.randn(n, k, generator=generator).to(torch.float8_e4m3fn)
        tensors |= {f"{name}.weight": stored, f"{name}.weight_scale_inv": grid}
        expected[name] = stored.float() * expand(grid, n, k)
    folder = write(tmp_path, tensors, BLOCK, intermediate_size=intermediate)
    for name, weight in expected.items():
        assert torch.equal(dense(folder, name), weight)
    model = load(folder)
    for name, weight in expected.items():
        x = 448 * torch.eye(weight.shape[1])  # one value a token: its scale is 1, so exact
        assert torch.equal(run(model, name, x) / 448, weight.T)


def test_s43_parts_of_a_merged_layer_whose_last_block_is_ragged():
    parts = [
        {"weight": codes(256, 256), "weight_scale_inv": GRID},
        {"weight": codes(192, 256), "weight_scale_inv": 10 * GRID},
    ]
    result = make_layer(BLOCK, 256, parts)(torch.ones(1, 256))[0]
    expected = torch.cat([expand(GRID, 256, 256), expand(10 * GRID, 192, 256)]).sum(1)
    assert torch.allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("method", ["fp8_per_block", "fp8_per_tensor", "fp8_per_channel", "mxfp8"])
def test_s43_no_scale_spans_two_parts(method):
    """Four parts of 192 rows: a block across a border would flush the smaller one to zero."""
    sizes = [10.0 ** (6 * part) for part in range(4)]
    parts = [{"weight": torch.full((192, 256), value)} for value in sizes]
    layer = make_layer(None, 256, parts, name=method)
    result = layer(torch.ones(1, 256))[0].view(4, 192) / 256
    for row, value in zip(result, sizes, strict=True):
        assert ((row - value).abs() / value).max() < 0.07
    scale = layer.weight_scale
    assert scale.shape[0] in (768, 768 // 64), "a part's last block is its own"


def mlp(intermediate):
    """Return the weights of an MLP in blocks, each block with a scale of its own."""
    generator = torch.Generator().manual_seed(6)

    def one(n, k):
        grid = torch.arange(1.0, 1 + -(-n // 128) * -(-k // 128)).view(-(-n // 128), -1)
        stored = 0.01 * torch.randn(n, k, generator=generator)
        return {"weight": stored.to(torch.float8_e4m3fn), "weight_scale_inv": grid}

    sizes = {"gate": (intermediate, 256), "up": (intermediate, 256), "down": (256, intermediate)}
    return {name: one(*size) for name, size in sizes.items()}


@pytest.mark.parametrize(("intermediate", "size"), [(192, 2), (192, 3), (320, 4), (320, 5)])
@pytest.mark.parametrize("activations", ["8 bits", "16 bits"])
def test_s09_an_mlp_divided_inside_its_blocks(intermediate, size, activations):
    """96 or 64 of 192 rows a rank, 80 of 320: blocks are shared by two ranks."""
    stored = mlp(intermediate)
    config = config_of("block", PLATFORMS[activations])
    real = {
        name: t["weight"].float() * expand(t["weight_scale_inv"], *t["weight"].shape)
        for name, t in stored.items()
    }
    x = torch.randn(7, 256, generator=torch.Generator().manual_seed(7))
    exact = (F.silu(x @ real["gate"].T) * (x @ real["up"].T)) @ real["down"].T
    total, widths = torch.zeros(7, 256), [intermediate] * 2
    for group in ranks(size):
        first = MergedColumnParallelLinear(256, widths, False, quant_config=config, group=group)
        last = RowParallelLinear(intermediate, 256, False, quant_config=config, group=group)
        gate, up = filled(first, [stored["gate"], stored["up"]])(x).chunk(2, dim=-1)
        total += filled(last, [stored["down"]])(F.silu(gate) * up)
    assert relative(total, exact) < (1e-5 if activations == "16 bits" else 0.06)


class ActOrder(QuantizationConfig):
    """4-bit codes with groups of 32 inputs in an order of their own, as GPTQ's desc_act stores."""

    name = "act_order"

    @classmethod
    def from_config(cls, config):
        return cls()

    def scheme_for(self, facts):
        return Decision.quantized(parse_scheme("int8[1x1]"), "all layers", "the test")

    def slots(self, scheme, n, k, facts):
        table = {"shapes": ((n, k // 32),), "col_tile": 32}
        return (
            Slot(name="codes", shapes=((n, k),), dtypes=("uint8",)),
            Slot(name="zeros", dtypes=("int32",), **table),
            Slot(name="scales", dtypes=("float32",), **table),
            Slot(name="g_idx", shapes=((k,),), dtypes=("int64",), row_tile=None, col_tile=1),
        )

    def decode(self, scheme, stored, facts):
        (t,) = stored
        codes = (t["codes"].int() - t["zeros"][:, t["g_idx"]]).to(torch.int8)
        scale = t["scales"][:, t["g_idx"]]
        segment = Segment(spec=scheme.weight, codes=codes, scale=scale)
        return CanonicalWeight(segments=(segment,))


@pytest.mark.parametrize("order", ["permuted", "trivial"])
@pytest.mark.parametrize("layer_class", [ColumnParallelLinear, RowParallelLinear])
def test_s20_act_order_is_decoded_before_it_is_cut(order, layer_class):
    """A rank's columns refer to groups all over the table, which it therefore sees whole."""
    generator = torch.Generator().manual_seed(8)
    groups = torch.arange(4).repeat_interleave(32)
    permuted = groups[torch.randperm(128, generator=generator)]
    stored = {
        "codes": torch.randint(0, 16, (16, 128), generator=generator, dtype=torch.uint8),
        "zeros": torch.randint(0, 16, (16, 4), generator=generator, dtype=torch.int32),
        "scales": torch.rand(16, 4, generator=generator),
        "g_idx": permuted if order == "permuted" else groups,
    }
    dispatch = quantdock.dispatch_for("cpu")
    config = ActOrder.from_config({}).bind(dispatch)
    x = torch.randn(3, 128, generator=generator)
    index = stored["g_idx"]
    real = stored["scales"][:, index] * (stored["codes"].int() - stored["zeros"][:, index])
    for size in (1, 2, 4):
        layers = [
            filled(layer_class(128, 16, False, quant_config=config, group=group), [stored])
            for group in ranks(size)
        ]
        is_row = layer_class is RowParallelLinear
        assert torch.equal(torch.cat([weight_of(each) for each in layers], int(is_row)), real)
        pieces = x.chunk(size, dim=1) if is_row else [x] * size
        parts = [layer(piece) for layer, piece in zip(layers, pieces, strict=True)]
        found = sum(parts) if is_row else torch.cat(parts, dim=1)
        assert relative(found, x @ real.T) < 1e-6


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("k", [4096, 65_536, 262_144])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_s45_long_sums_do_not_depend_on_the_number_of_ranks(k, size, dtype):
    """Alternating +1 and -1: partial sums in 16 bits would lose what is left."""
    signs = torch.ones(4, k)
    signs[:, 1::2] = -1
    stored = {"weight": signs.to(torch.float8_e4m3fn), "weight_scale": torch.tensor(1.0)}
    # Halves that cancel: each rank's sum is large, that of all is small.
    drift = torch.linspace(1.0, -1.0, k) * (torch.arange(k) % 2)
    noise = 0.01 * torch.randn(3, k, generator=torch.Generator().manual_seed(9))
    x = (1 + noise + drift).to(dtype)
    config = config_of("tensor", PLATFORMS["16 bits"])
    parts = [
        filled(
            RowParallelLinear(k, 4, False, quant_config=config, params_dtype=dtype, group=group),
            [stored],
        )
        for group in ranks(size)
    ]
    pieces = x.chunk(size, dim=1)
    found = sum(part(piece) for part, piece in zip(parts, pieces, strict=True)).to(dtype)
    exact = x.double() @ signs.double().T
    bound = 2.0**-8 * exact.abs() + 2.0**-20 * x.double().abs() @ signs.double().abs().T
    assert ((found.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("kind", ["block", "online block", "none"])
def test_s47_a_divided_input_has_its_bias_once(kind, size):
    """96 outputs end inside a block of 128; each has a bias of its own."""
    bias = torch.arange(96.0) + 100
    tensors = {"weight": torch.zeros(96, 256)}
    if kind == "block":
        tensors = {"weight": codes(96, 256, 0.0), "weight_scale_inv": torch.ones(1, 2)}
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(10))
    parts = [
        filled(
            RowParallelLinear(256, 96, quant_config=config_of(kind), group=group),
            [tensors | {"bias": bias}],
        )
        for group in ranks(size)
    ]
    found = sum(part(piece) for part, piece in zip(parts, x.chunk(size, dim=1), strict=True))
    assert found.tolist() == [bias.tolist()] * 5
