"""On an NVIDIA GPU: doctor makes the kernels of a mixture, and judges what they compute."""

from __future__ import annotations

import pytest
import torch
import transformers

from quantdock import doctor

pytestmark = pytest.mark.device
MIXTURE = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 320,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "dtype": "bfloat16",
}


@pytest.mark.parametrize("method", ["fp8_per_channel", "mxfp4"])
def test_a_mixture_is_sound(cuda, tmp_path, method):
    config = transformers.MixtralConfig(**MIXTURE)
    transformers.MixtralForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "m")
    report = doctor(tmp_path / "m", platform=cuda, quantization=method)
    assert report["kernels"].status == "pass", report["kernels"].findings
    assert report["numbers"].status == "pass", report["numbers"].findings
