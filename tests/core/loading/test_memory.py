"""Quantizing at load holds the quantized model and about one layer, never the 16-bit model."""

from __future__ import annotations

from measured_memory import printed, write_model

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}
CODE = """
folder, method = sys.argv[1:]
quantdock.load(folder, quantization=method, device="cpu", ignore=["model.layers.[1-9]*"])
base, peak = anonymous_bytes(), 0

def watch(items):
    global peak
    for item in items:
        peak = max(peak, anonymous_bytes())
        yield item

model = quantdock.load(folder, quantization=method, device="cpu", track=watch)
peak = max(peak, anonymous_bytes())
total = sum(layer.bytes_stored for layer in model.quantdock_plan.layers)
print((peak - base) / total)
"""


def test_peak_of_an_online_load_stays_below_60_percent_of_the_checkpoint(tmp_path):
    folder = write_model(tmp_path, "llama", **SIZES)
    assert 0.45 < float(printed(CODE, folder, "fp8_per_channel")) < 0.60
