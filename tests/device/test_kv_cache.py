"""On an NVIDIA GPU: keys and values as codes, beside the CPU; graphs; memory that is less."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import quantdock
from demo.models import TINY_LLAMA
from quantdock.integrations.transformers.cache_layers import QuantizedLayer, QuantizedStaticLayer
from quantdock.kv_cache import KVCodec, KVScale

pytestmark = [
    pytest.mark.device,
    # torch 2.11's own use of torch.jit, when it compiles.
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
    # It suggests tf32 for the float32 products that it compiles.
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
    # Its first graph is meant to be empty.
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),
]
IDS = torch.arange(3, 60)[None]
ELEMENTS = ("fp8_e4m3", "fp8_e5m2", "int8")
LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 256,
    "max_position_embeddings": 32768,
}


def load(kv_cache, dtype="float32"):
    return quantdock.load(TINY_LLAMA, device="cuda", dtype=dtype, kv_cache=kv_cache)


def generate(model, **options):
    ids = IDS.to(model.device)
    more = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False, **options}
    return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **more)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("scale", [None, 0.03, (0.03, 0.5)])
def test_codes_and_values_equal_the_cpus(cuda, element, scale):
    static = None if scale is None else KVScale.of(torch.tensor(scale))
    x = torch.randn(2, 2, 500, 64).to(torch.bfloat16)
    x[0, 1, 7, 3] = float("nan")
    here, there = KVCodec(element, static), KVCodec(element, static)
    codes, scales = here.encode(x.cuda())
    expected, expected_scales = there.encode(x)
    assert torch.equal(codes.cpu().view(torch.uint8), expected.view(torch.uint8))
    values = here.decode(codes, scales, x.dtype).cpu()
    reference = there.decode(expected, expected_scales, x.dtype)
    assert torch.equal(values.nan_to_num(7.0), reference.nan_to_num(7.0))


@pytest.mark.parametrize("kv_cache", ["fp8", "int8"])
def test_generate_says_what_the_cpu_says(cuda, kv_cache):
    there = quantdock.load(TINY_LLAMA, device="cpu", dtype="float32", kv_cache=kv_cache)
    assert torch.equal(generate(load(kv_cache)).cpu(), generate(there))


def test_a_static_cache_is_compiled_and_says_the_same(cuda):
    model = load("fp8")
    result = generate(model, cache_implementation="static", return_dict_in_generate=True)
    cache = next(result[n] for n in ("cache", "past_key_values") if result.get(n) is not None)
    assert {type(layer) for layer in cache.layers} == {QuantizedStaticLayer}
    assert torch.equal(result.sequences, generate(model))


@torch.inference_mode()
def test_a_long_context_takes_half_the_memory(cuda, tmp_path):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **LARGE))
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    codes, plain = (_taken(tmp_path, kv_cache) for kv_cache in ("fp8", "none"))
    assert 0.5 < codes / plain < 0.6


def _taken(folder, kv_cache):
    """Return the bytes that the cache of 16,384 tokens takes."""
    model = quantdock.load(folder, device="cuda", kv_cache=kv_cache)
    ids = torch.randint(0, 256, (1, 16384), device="cuda")
    before = torch.cuda.memory_allocated()
    output = model(input_ids=ids, use_cache=True, logits_to_keep=1)
    cache = next(output[n] for n in ("cache", "past_key_values") if output.get(n) is not None)
    assert isinstance(cache.layers[0], QuantizedLayer) is (kv_cache == "fp8")
    del output
    return torch.cuda.memory_allocated() - before
