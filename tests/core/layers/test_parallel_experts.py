"""FusedMoE on several ranks, made by hand: what they return is summed, and equals one rank's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import quantdock
from quantdock import ParallelGroup
from quantdock.configs.online import OnlineConfig
from quantdock.errors import ConfigError
from quantdock.layers import FusedMoE
from quantdock.methods.expert_shape import ExpertShape
from quantdock.methods.experts import ExpertFacts
from quantdock.numerics.canonical import join
from quantdock.schemes import LayerFacts, StoredTensor, parse_scheme
from quantdock.testing.sample_weights import sample_weight

E, H = 4, 256
SCHEMES = (
    "fp8_e4m3[*x*]",
    "fp8_e4m3[1x*]",
    "fp8_e4m3[128x128]",
    "fp4_e2m1[1x32]:e8m0:even",
    "fp4_e2m1[1x16]:e4m3:second[*x*]",
    "int4[1x32]",
    "uint4[1x128]:zero",
    "int8[1x*]",
)


ACT_ORDER = parse_scheme("int4[1x64]:act-order")


def gate(hidden: Tensor) -> Tensor:
    first, second = hidden.chunk(2, dim=-1)
    return F.silu(first) * second


def interleaved(hidden: Tensor) -> Tensor:
    return F.silu(hidden[..., ::2]) * hidden[..., 1::2]


def config_of(scheme: str) -> OnlineConfig:
    """Return a config that quantizes experts to ``scheme`` as they arrive."""

    class Online(OnlineConfig):
        name = "test_online"
        online_schemes = (parse_scheme(scheme),)

    return Online.online().bind(quantdock.dispatch_for("cpu:generic"))


def ordered(platform: str) -> OnlineConfig:
    """Return a config whose experts arrive in act-order, each in its own."""

    class Ordered(OnlineConfig):
        name = "test_ordered"
        online_schemes = (ACT_ORDER,)

        def decode(self, scheme, stored, facts):
            return join([sample_weight(tensors["weight"], scheme) for tensors in stored])

    return Ordered.online().bind(quantdock.dispatch_for(platform))


def build(
    scheme: str | None,
    i: int,
    shards: int,
    group=None,
    over="features",
    order="gate_up",
    config=None,
    dtype=torch.float32,
):
    sizes = (2 * i // shards,) * shards

    def facts(expert: int, name: str, n: int, k: int) -> LayerFacts:
        stored = {"weight": StoredTensor(dtype="float32", shape=(n, k))}
        return LayerFacts(prefix=f"experts.{expert}.{name}", kind="experts", stored=stored)

    experts = [
        ExpertFacts(
            w13=tuple(facts(e, f"w13_{s}", n, H) for s, n in enumerate(sizes)),
            w2=(facts(e, "w2", H, i),),
        )
        for e in range(E)
    ]
    shape = ExpertShape(
        num_experts=E,
        hidden_size=H,
        intermediate_size=i,
        w13_sizes=sizes,
        w13_order=order,
        has_bias=True,
    )
    layer = FusedMoE(
        experts,
        shape,
        gate=interleaved if order == "interleaved" else gate,
        params_dtype=dtype,
        quant_config=config or (None if scheme is None else config_of(scheme)),
        group=group or ParallelGroup(),
        over=over,
    )
    random = torch.Generator().manual_seed(i)
    for expert in range(E):
        w13 = torch.randn(2 * i, H, generator=random) / 16
        w2 = torch.randn(H, i, generator=random) / 16
        for shard, part in enumerate(torch.split(w13, sizes)):
            layer.quant_method.load(layer, part, expert, "w13", "weight", shard)
        layer.quant_method.load(layer, w2, expert, "w2", "weight")
    layer.quant_method.process_weights_after_loading(layer)
    for name, n in (("w13_bias", 2 * i), ("w2_bias", H)):
        whole = torch.randn(E, n, generator=random)
        if getattr(layer, name) is not None:
            getattr(layer, name).data.copy_(layer.bias_part(name, whole))
    return layer


def routed() -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(9)
    ids = torch.stack([torch.randperm(E, generator=random)[:2] for _ in range(7)])
    return torch.randn(7, H, generator=random), ids, torch.rand(7, 2, generator=random)


@pytest.mark.parametrize("scheme", [None, *SCHEMES])
@pytest.mark.parametrize(("i", "ranks"), [(192, 2), (192, 3), (320, 4), (704, 2)])
def test_ranks_divide_the_features_of_every_expert(scheme, i, ranks):
    """192 of 2 ranks and 320 of 4 end inside blocks of 128, and parts of 80 inside groups of 32."""
    layers = [build(scheme, i, 2, ParallelGroup(rank=r, size=ranks)) for r in range(ranks)]
    expected = build(scheme, i, 2)(*routed())
    found = sum(layer(*routed()) for layer in layers)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert [len(layer.shape.own_features) for layer in layers] == [i // ranks] * ranks


def test_features_in_act_order_are_divided_by_a_kernel_that_takes_unequal_groups():
    config = ordered("cpu:avx2")
    shared = {"config": config, "dtype": torch.bfloat16}
    whole = build(None, 192, 2, **shared)
    assert str(whole.quant_method.kernels) == "int4_pack"
    layers = [build(None, 192, 2, ParallelGroup(rank=r, size=2), **shared) for r in range(2)]
    for layer in layers:
        kernels = layer.quant_method.kernels
        assert (kernels.w13.kernel.name, kernels.w2.kernel.name) == ("int4_pack", "reference")
        assert "w2_weight_group" in layer._parameters
    x, ids, weights = routed()
    expected = whole(x.bfloat16(), ids, weights).float()
    found = sum(layer(x.bfloat16(), ids, weights) for layer in layers).float()
    assert (found - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize("scheme", [None, "fp8_e4m3[1x*]", "fp4_e2m1[1x32]:e8m0:even"])
@pytest.mark.parametrize("order", ["gate_up", "interleaved"])
def test_gate_and_up_in_one_tensor_are_divided_each(scheme, order):
    layers = [build(scheme, 80, 1, ParallelGroup(rank=r, size=2), order=order) for r in range(2)]
    found = sum(layer(*routed()) for layer in layers)
    expected = build(scheme, 80, 1, order=order)(*routed())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_blocks_that_span_gate_and_up_are_cut_where_they_lie():
    """A file may have one scale for rows of both: 384 rows in 3 blocks, the second spans them."""
    expected = build("fp8_e4m3[128x128]", 192, 1)(*routed())
    layers = [build("fp8_e4m3[128x128]", 192, 1, ParallelGroup(rank=r, size=2)) for r in range(2)]
    found = sum(layer(*routed()) for layer in layers)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scheme", [None, "fp8_e4m3[128x128]", "int4[1x32]"])
def test_ranks_divide_the_experts(scheme):
    layers = [build(scheme, 192, 2, ParallelGroup(rank=r, size=2), "experts") for r in range(2)]
    assert [layer.shape.own_experts for layer in layers] == [range(2), range(2, 4)]
    x, ids, weights = routed()
    expected = build(scheme, 192, 2)(x, ids, weights)
    torch.testing.assert_close(
        sum(layer(x, ids, weights) for layer in layers), expected, rtol=1e-4, atol=1e-4
    )
    only_first = ids.clamp(max=1)
    assert layers[1](x, only_first, weights).abs().max() == 0


@pytest.mark.parametrize(("i", "ranks", "over"), [(192, 5, "features"), (192, 3, "experts")])
def test_what_cannot_be_divided_says_what_could(i, ranks, over):
    with pytest.raises(ConfigError, match="Numbers of ranks that work") as caught:
        build(None, i, 2, ParallelGroup(rank=0, size=ranks), over)
    assert 2 in caught.value.facts["tp_sizes"]
