"""One store for several layers: the same results, computed once, and never for another input."""

from __future__ import annotations

import copy
import gc
import io
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from quantdock import dispatch_for, get_quantization_config
from quantdock.errors import SaveError
from quantdock.kernels.fold import requantize_with_max
from quantdock.kernels.scaled_linear import ScaledLinear
from quantdock.layers import LinearBase, MergedStore, MergedView
from quantdock.schemes import LayerFacts

K, SIZES = 256, (256, 128, 128)
NAMES = ("q_proj", "k_proj", "v_proj")
METHODS = ("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8")


def config_of(method):
    return get_quantization_config(method, "cpu").online().bind(dispatch_for("cpu"))


def alone(method, index, weight, bias):
    layer = LinearBase(
        K,
        weight.shape[0],
        bias is not None,
        quant_config=config_of(method),
        prefix=NAMES[index],
        params_dtype=torch.float32,
    )
    layer.quant_method.pending.add("weight", weight)
    layer.quant_method.process_weights_after_loading(layer)
    if bias is not None:
        layer.bias.data.copy_(bias)
    return layer


def together(method, weights, biases):
    store = MergedStore(
        K,
        [weight.shape[0] for weight in weights],
        biases[0] is not None,
        params_dtype=torch.float32,
        quant_config=config_of(method),
        facts=LayerFacts(prefix="qkv_proj", shards=NAMES),
    )
    for index, weight in enumerate(weights):
        store.quant_method.pending.add("weight", weight, index)
    store.quant_method.process_weights_after_loading(store)
    if biases[0] is not None:
        store.bias.data.copy_(torch.cat(biases))
    views = [MergedView(store, i, LayerFacts(prefix=name)) for i, name in enumerate(NAMES)]
    return store, views


def make(method="fp8_per_channel", has_bias=False, sizes=SIZES):
    torch.manual_seed(3)
    weights = [torch.randn(n, K) * (0.01 * 4**i) for i, n in enumerate(sizes)]
    biases = [torch.randn(n) if has_bias else None for n in sizes]
    layers = [alone(method, i, w, b) for i, (w, b) in enumerate(zip(weights, biases, strict=True))]
    store, views = together(method, weights, biases)
    return layers, store, views


@pytest.fixture
def calls(monkeypatch):
    """Count the runs of the kernel."""
    counted = []
    plain = ScaledLinear.apply

    def apply(self, tensors, x, bias):
        counted.append(x)
        return plain(self, tensors, x, bias)

    monkeypatch.setattr(ScaledLinear, "apply", apply)
    return counted


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", [1, 5])
def test_results_are_those_of_the_layers_alone(calls, method, has_bias, rows):
    layers, _, views = make(method, has_bias)
    x = torch.randn(2, rows, K)
    expected = [layer(x) for layer in layers]
    calls.clear()
    found = [view(x) for view in views]
    assert len(calls) == 1
    for ours, alone in zip(found, expected, strict=True):
        assert ours.is_contiguous()
        assert torch.equal(ours, alone)


def test_layers_that_end_inside_a_block_differ_by_the_order_of_sums_at_most():
    layers, _, views = make("fp8_per_block", sizes=(192, 64, 64))
    x = torch.randn(1, K)
    for layer, view in zip(layers, views, strict=True):
        torch.testing.assert_close(view(x), layer(x), rtol=1e-5, atol=1e-5)
        weights = [m.dequantize() for m in (view.restore(), layer.quant_method.restore(layer))]
        assert torch.equal(*weights)


def test_each_scale_stays_and_each_layer_is_restored():
    for method in METHODS:
        layers, _, views = make(method)
        for layer, view in zip(layers, views, strict=True):
            (ours,), (own,) = view.restore().segments, layer.quant_method.restore(layer).segments
            assert ours.spec == own.spec
            assert torch.equal(ours.codes.view(torch.uint8), own.codes.view(torch.uint8))
            assert torch.equal(ours.scale, own.scale)


def test_an_input_that_was_written_to_is_computed_again(calls):
    layers, _, (q, k, v) = make()
    x = torch.randn(3, K)
    assert torch.equal(q(x), layers[0](x))
    x.mul_(2)
    assert torch.equal(k(x), layers[1](x))
    x[0, 0] = 7  # a write through a view
    assert torch.equal(v(x), layers[2](x))


def test_another_tensor_of_the_same_values_is_computed_again(calls):
    _, _, (q, k, _) = make()
    x = torch.randn(3, K)
    q(x)
    k(x.clone())
    assert len(calls) == 2


def test_a_layer_that_is_called_again_is_computed_again(calls):
    _, _, (q, k, v) = make()
    x = torch.randn(3, K)
    q(x), q(x), k(x), v(x)
    assert len(calls) == 2
    q(x)
    assert len(calls) == 3


def test_other_weights_are_never_mixed_in():
    _, store, (q, k, _) = make()
    x = torch.randn(3, K)
    q(x)
    for index, n in enumerate(SIZES):
        store.quant_method.pending.add("weight", torch.randn(n, K), index)
    store.quant_method.process_weights_after_loading(store)
    assert torch.equal(k(x), store(x)[..., 256:384])
    q(x)
    with torch.no_grad():
        store.weight_scale.mul_(2)
    assert torch.equal(k(x), store(x)[..., 256:384])


def test_inference_mode_which_counts_no_writes_compares_what_was_written(calls):
    layers, store, views = make(has_bias=True)
    with torch.inference_mode():
        x = torch.randn(3, K)
        expected = [layer(x) for layer in layers]
        calls.clear()
        found = [view(x) for view in views]
        assert len(calls) == 1 and store._kept is None
        views[0](x)
        x.zero_()
        written = views[1](x)
    for ours, alone in zip(found, expected, strict=True):
        assert torch.equal(ours, alone)
    assert torch.equal(written, store.bias[256:384].expand(3, -1))


def test_compiled_calls_keep_nothing():
    layers, store, views = make("fp8_per_block")
    x = torch.randn(3, K)
    compiled = torch.compile(lambda x: [view(x) for view in views], backend="eager", fullgraph=True)
    for ours, layer in zip(compiled(x), layers, strict=True):
        assert torch.equal(ours, layer(x))
    assert store._kept is None


def test_nothing_outlives_its_input():
    _, store, (q, _, _) = make()
    x = torch.randn(3, K)
    q(x)
    assert store._kept is not None
    del x
    gc.collect()
    assert store._kept is None


def test_copies_and_saved_modules_are_stores_of_their_own():
    _, store, views = make(has_bias=True)
    model = torch.nn.ModuleDict(
        {"qkv_proj": store, **dict(zip(NAMES, views, strict=True))},
    )
    x = torch.randn(3, K)
    expected = store(x)[..., :256]
    views[1](x)  # something is kept meanwhile
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert other["q_proj"].store is other["qkv_proj"] is not store
        assert torch.equal(other["q_proj"](x), expected)
        assert other.state_dict().keys() == {"qkv_proj.weight", "qkv_proj.weight_scale"} | {
            "qkv_proj.bias"
        }


def test_moving_keeps_the_format():
    _, store, views = make(has_bias=True)
    model = torch.nn.ModuleDict({"qkv_proj": store, "k_proj": views[1]}).half()
    assert store.weight.dtype == torch.float8_e4m3fn
    assert store.weight_scale.dtype == torch.float32
    assert store.bias.dtype == torch.float16
    assert views[1].bias.dtype == torch.float16 and views[1].bias.shape == (128,)
    assert views[1].weight.shape == (128, K)
    assert [name for name, _ in model.named_parameters()] == [
        "qkv_proj.bias",
        "qkv_proj.weight",
        "qkv_proj.weight_scale",
    ]


def test_a_view_tells_its_format():
    _, _, views = make()
    format = views[1].base_format
    assert (format.in_features, format.out_features) == (K, 128)
    assert format.kernel == "reference" and format.device.type == "cpu"
    assert views[1].where == "rows 256-383 of 512, in qkv_proj"
    assert "qkv_proj" in repr(views[1]) and "(256, 128, 128)" in repr(views[1].store)
    assert sum(view.num_bytes for view in views) == 512 * K + 512 * 4


def test_a_kernel_of_one_scale_gets_the_largest_and_the_method_records_it(monkeypatch):
    monkeypatch.setattr(ScaledLinear, "fold", staticmethod(requantize_with_max), raising=False)
    layers, store, views = make("fp8_per_tensor")
    assert store.quant_method.value_steps == ("requantized 3 shards to the max of their scales",)
    assert store.weight_scale.unique().numel() == 1
    scales = [float(layer.weight_scale) for layer in layers]
    assert float(store.weight_scale[0]) == max(scales)
    with pytest.raises(SaveError, match="qkv_proj cannot be restored"):
        views[0].restore()


def test_two_threads_never_get_each_others_rows():
    _, store, views = make()
    inputs = [torch.randn(3, K) for _ in range(2)]
    expected = [store(x) for x in inputs]

    def run(which):
        x, wanted = inputs[which], expected[which].split([256, 128, 128], dim=-1)
        return all(
            torch.equal(view(x), part)
            for _ in range(100)
            for view, part in zip(views, wanted, strict=True)
        )

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [True, True]
