"""On an NVIDIA GPU: what the probe says, and the plain-torch kernels beside the CPU."""

from __future__ import annotations

import pytest
import torch

import quantdock
from demo.models import TINY_LLAMA
from quantdock import Policy, dispatch_for
from quantdock.configs.fp8 import Fp8Config
from quantdock.errors import NoKernelError
from quantdock.kernel import Problem
from quantdock.layers import LinearBase
from quantdock.loading.staging import finish_on
from quantdock.numerics import quantize
from quantdock.schemes import LayerFacts, parse_scheme
from toy_files import write_block_checkpoint

pytestmark = pytest.mark.device
IDS = torch.arange(3, 60)[None]
METHODS = ("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8")


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS.to(model.device)).logits.float().cpu()


def test_the_probe_reads_the_real_device(cuda):
    major, minor = torch.cuda.get_device_capability(0)
    assert cuda.arch == f"sm_{major}{minor}" and not cuda.described
    assert ("fp8_mma" in cuda.features) is ((major, minor) >= (8, 9))
    assert cuda.memory_bytes > 1 << 30


def test_plain_torch_is_refused_unless_asked(cuda):
    scheme = parse_scheme("fp8_e4m3fnuz[1x*] x fp8_e4m3fnuz[1x*]:dynamic")
    with pytest.raises(NoKernelError, match="--require reference"):
        dispatch_for(cuda).select(Problem(scheme=scheme, n=64, k=64))


@pytest.mark.parametrize("method", METHODS)
def test_online_quantization_equals_the_cpu(cuda, method):
    asked = {"quantization": method, "dtype": "float32", "require": "reference"}
    here = quantdock.load(TINY_LLAMA, device="cuda", **asked)
    there = quantdock.load(TINY_LLAMA, device="cpu", **asked)
    layer, other = (m.get_submodule("model.layers.0.mlp.up_proj") for m in (here, there))
    assert torch.equal(layer.weight.cpu().view(torch.uint8), other.weight.view(torch.uint8))
    difference = (logits(here) - logits(there)).norm() / logits(there).norm()
    assert difference < 0.02


def test_serialized_blocks_equal_the_cpu(cuda, tmp_path):
    block = write_block_checkpoint(TINY_LLAMA, tmp_path / "block")
    here = quantdock.load(block, device="cuda", dtype="float32", require="reference")
    there = quantdock.load(block, device="cpu", dtype="float32")
    assert (logits(here) - logits(there)).norm() / logits(there).norm() < 0.02


def test_generate_runs_in_bfloat16(cuda):
    model = quantdock.load(
        TINY_LLAMA, quantization="fp8_per_block", device="cuda", require="reference"
    )
    out = model.generate(input_ids=IDS[:, :4].to("cuda"), max_new_tokens=6, do_sample=False)
    assert out.shape[1] <= 10 and out.shape[1] > 4


def test_finishing_an_offloaded_layer(cuda):
    policy = Policy(require="reference")
    config = Fp8Config.from_config({"quant_method": "fp8", "weight_block_size": [128, 128]})
    config.bind(dispatch_for(cuda, policy))
    layer = LinearBase(256, 384, bias=False, quant_config=config, params_dtype=torch.float32)
    dense = torch.randn(384, 256)
    scheme = config.scheme_for(LayerFacts(prefix="a.b")).scheme
    weight = quantize(dense, scheme.weight)
    layer.quant_method.pending.add("weight", weight.codes)
    layer.quant_method.pending.add("weight_scale_inv", weight.scale)
    finish_on(layer, "cuda")
    assert {p.device.type for p in layer.parameters()} == {"cpu"}
    x = torch.randn(5, 256)
    on_cpu = layer(x)
    layer.to("cuda")
    assert {p.device.type for p in layer.parameters()} == {"cuda"}
    assert torch.allclose(layer(x.cuda()).cpu(), on_cpu, rtol=1e-3, atol=1e-3)
