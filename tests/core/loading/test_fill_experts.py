"""Experts are read and quantized one after another: what is held never includes 16-bit experts."""

from __future__ import annotations

from measured_memory import printed, write_model

WIDTH, EXPERTS = 256, 128
SIZES = {
    "hidden_size": WIDTH,
    "moe_intermediate_size": WIDTH,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
CODE = """
import threading

first, folder, method = sys.argv[1:]
quantdock.load(first, quantization=method, device="cpu")  # imports modules
base, peak, done = anonymous_bytes(), 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous_bytes())

thread = threading.Thread(target=watch)
thread.start()
model = quantdock.load(folder, quantization=method, device="cpu")
done.set()
thread.join()
layers = [layer for layer in model.quantdock_plan.layers if layer.kind == "experts"]
stored, held = (sum(getattr(la, f"bytes_{w}") for la in layers) for w in ("stored", "memory"))
print(stored, held, peak - base)
"""
ONE_EXPERT = 3 * WIDTH * WIDTH * 2


def test_128_experts_take_their_quantized_size_and_about_one_expert(tmp_path):
    first = write_model(tmp_path / "first", "qwen3_moe", num_experts=2, **SIZES)
    large = write_model(tmp_path / "large", "qwen3_moe", num_experts=EXPERTS, **SIZES)
    stored, held, peak = map(float, printed(CODE, first, large, "mxfp4").split())
    assert stored == EXPERTS * ONE_EXPERT
    assert held < 0.32 * stored
    # Quantizing computes in f32, with several copies of one matrix; 16-bit experts would be 128.
    assert peak - held < 32 * ONE_EXPERT
