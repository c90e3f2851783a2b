"""int8 weights at load: the numbers, and the kernel that a device has for them."""

from __future__ import annotations

import torch

from quantdock.configs.int8_per_channel_weight_only import Int8PerChannelWeightOnlyConfig
from quantdock.kernel import Problem
from quantdock.registry import dispatch_for
from quantdock.schemes import LayerFacts


def test_weights_by_rows_and_activations_as_given() -> None:
    config = Int8PerChannelWeightOnlyConfig.online(ignore=["down_proj"])
    facts = LayerFacts(prefix="model.layers.0.mlp.up_proj")
    scheme = config.scheme_for(facts).scheme
    assert str(scheme) == "int8[1x*]" and scheme is not None
    ignored = config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.down_proj"))
    assert ignored.source == "ignore[0] = 'down_proj'"
    weight = torch.tensor([[1.27, -0.635, 0.0], [-254.0, 2.0, 1.0], [0.0, 0.0, 0.0]])
    made = config.decode(scheme, [{"weight": weight}], facts)
    # 63.5 is a tie and goes to the even code, as does 0.5.
    assert made.segments[0].codes.tolist() == [[127, -64, 0], [-127, 1, 0], [0, 0, 0]]
    assert made.segments[0].scale[:2, 0].tolist() == [torch.tensor(0.01).item(), 2.0]


def test_a_cpu_with_avx2_has_a_kernel_of_its_own() -> None:
    dispatch = dispatch_for("cpu:avx2")
    config = Int8PerChannelWeightOnlyConfig.online().bind(dispatch)
    decision = config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.up_proj"))
    assert decision.because.endswith("on cpu:avx2, which has a kernel for it")
    assert decision.scheme is not None
    assert dispatch.select(Problem(scheme=decision.scheme)).kernel.name == "int8_pack"
