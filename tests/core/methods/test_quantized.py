"""The second choice of a kernel: what only a stored index shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import quantdock
from quantdock import Kernel, Platform, SchemeSet, SpecSet
from quantdock.configs.gptq import GPTQConfig
from quantdock.configs.gptq_codes import encode_gptq
from quantdock.dispatch import Dispatch
from quantdock.errors import NoKernelError
from quantdock.layers import ReplicatedLinear, RowParallelLinear
from quantdock.methods.written import written
from toy_gptq import GPTQ, in_act_order
from toy_ranks import filled, ranks, relative, weight_of

BLOCK = {**GPTQ, "group_size": 64, "sym": False, "desc_act": True}
WHY = "sorts columns by group, and groups are of unequal size"


def config_of(platform: str) -> GPTQConfig:
    return GPTQConfig.from_config(BLOCK).bind(quantdock.dispatch_for(platform))


def kernel_of(layer: Any) -> str:
    return layer.quant_method.selection.kernel.name


def divided(config: GPTQConfig, size: int, tensors: dict[str, torch.Tensor]) -> list[Any]:
    return [
        filled(
            RowParallelLinear(
                256, 128, False, quant_config=config, group=group, params_dtype=torch.bfloat16
            ),
            [tensors],
        )
        for group in ranks(size)
    ]


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_divide_act_order_run_another_kernel(size: int) -> None:
    weight = in_act_order(128, 256, 64)
    tensors = encode_gptq(weight)
    config = config_of("cpu:avx2")
    assert [kernel_of(layer) for layer in divided(config, 1, tensors)] == ["int4_pack"]
    layers = divided(config, size, tensors)
    for layer in layers:
        selection = layer.quant_method.selection
        assert selection.kernel.name == "reference"
        assert {r.kernel: r.reasons for r in selection.rejected}["int4_pack"] == (WHY,)
    assert torch.equal(torch.cat([weight_of(each) for each in layers], 1), weight.dequantize())
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    pieces = zip(layers, x.chunk(size, dim=1), strict=True)
    found = sum(layer(piece) for layer, piece in pieces)
    assert relative(found, x.float() @ weight.dequantize().T) < 1e-5


def test_an_index_in_a_row_is_divided_without_another_kernel() -> None:
    """Files that say act-order may hold none; a plan of headers cannot know that."""
    tensors = encode_gptq(in_act_order(128, 256, 64))
    tensors["g_idx"] = torch.arange(256, dtype=torch.int32) // 64
    assert {kernel_of(layer) for layer in divided(config_of("cpu:avx2"), 2, tensors)} == {
        "int4_pack"
    }


def test_a_file_with_unequal_groups_runs_another_kernel_and_loading_again_follows() -> None:
    tensors = encode_gptq(in_act_order(128, 256, 64))
    unequal = {**tensors, "g_idx": tensors["g_idx"].clone()}
    unequal["g_idx"][unequal["g_idx"] == 3] = 1
    config = config_of("cpu:avx2")
    layer = ReplicatedLinear(256, 128, False, quant_config=config, params_dtype=torch.bfloat16)
    declared = dict(layer.named_parameters())
    filled(layer, [unequal])
    assert kernel_of(layer) == "reference"
    assert "weight_group" in layer._parameters
    for name, tensor in tensors.items():
        declared[name].weight_loader(declared[name], tensor)
    layer.quant_method.process_weights_after_loading(layer)
    assert kernel_of(layer) == "int4_pack"
    assert torch.equal(weight_of(layer), in_act_order(128, 256, 64).dequantize())


def test_where_nothing_else_runs_the_reason_is_told() -> None:
    kernel = Kernel(
        name="acme_sorted",
        target="quantdock.kernels.scaled_linear:ScaledLinear",
        accepts=SchemeSet(weight=SpecSet(act_order=None)),
        sorts_columns=True,
    )
    platform = Platform(name="acme", arch="a1", device="meta")
    config = GPTQConfig.from_config(BLOCK).bind(Dispatch(platform=platform, kernels=(kernel,)))
    tensors = encode_gptq(in_act_order(128, 256, 64))
    assert [kernel_of(layer) for layer in divided(config, 1, tensors)] == ["acme_sorted"]
    with pytest.raises(NoKernelError, match=f"acme_sorted: {WHY}"):
        divided(config, 2, tensors)


def test_a_tensor_that_cannot_stay_where_it_was_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Graphs that were captured read what was there."""
    current = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    assert written(current, torch.zeros(2)) is current and not current.any() and not caplog.text
    assert written(current, torch.ones(2).half()).dtype == torch.float16
    assert "loaded again is torch.float16 now: capture graphs anew" in caplog.text
