"""Names that are known and not supported yet: a row each, with what a user can do today."""

from __future__ import annotations

from quantdock.method_name import MethodName

_ONLINE = (
    "Load the 16-bit original of this model and quantize it at load: "
    "quantization='fp8_per_channel' (or fp8_per_block, mxfp8)."
)


def _later(name: str, summary: str, remedy: str = _ONLINE, *, online: bool = False) -> MethodName:
    return MethodName(name=name, summary=summary, remedy=remedy, online=online)


def _via_transformers(what: str) -> str:
    return (
        f"{what} Save the result with save_pretrained and load that folder here; "
        "it can be quantized at load with quantization='fp8_per_channel'."
    )


_INTEGER = (
    _later("experts_int8", "int8 expert weights at load", online=True),
    _later("auto-round-int8", "AutoRound: int8 weights and activations"),
    _later("rtn", "round-to-nearest int4 or int8 weights at load", online=True),
    _later("qoq", "QServe's W4A8 with two levels of scales"),
    _later("qqq", "QQQ's W4A8 by groups"),
    _later("mlx_q4", "MLX 4-bit weights by groups"),
    _later("mlx_q8", "MLX 8-bit weights by groups"),
)

_MX_AND_NV = (
    _later("mxfp_w4a8", "microscaling fp4 weights, fp8 activations"),
    _later("nvfp4_per_token", "NVFP4 experts at load, per-token activations", online=True),
    _later("fp_quant", "FP-Quant: microscaling or NV fp4 with a Hadamard rotation", online=True),
    _later("fouroversix", "NVFP4 with adaptive block scales", online=True),
)

_LIBRARIES = (
    _later(
        "bitsandbytes",
        "bitsandbytes: nf4, fp4 or int8 weights",
        _via_transformers("Decode it in transformers: from_pretrained(path).dequantize()."),
        online=True,
    ),
    _later(
        "gguf",
        "GGUF files: block formats Q2_K to Q8_0, IQ*, TQ*",
        _via_transformers(
            "Decode it in transformers: from_pretrained(folder, gguf_file=name, "
            "quantization_config=GgufConfig(dequantize=True))."
        ),
    ),
    _later("torchao", "torchao: serialized tensor subclasses", online=True),
    _later(
        "online",
        "at-load quantization described by a dictionary",
        "Name the scheme instead: quantization='fp8_per_tensor', 'fp8_per_channel', "
        "'fp8_per_block' or 'mxfp8'; per-layer choices go into choices=.",
        online=True,
    ),
    _later("humming", "weights of 2 to 8 bits, compiled when used"),
    _later("modelslim", "ModelSlim checkpoints with a scheme for each tensor"),
    _later(
        "ascend",
        "ModelSlim checkpoints, as an NPU plugin of another engine names them",
        "Run it with that engine, or load the 16-bit original of this model with "
        "quantization='fp8_per_channel'.",
    ),
    _later("hqq", "HQQ: integer weights by groups, float zero points", online=True),
    _later("quanto", "optimum-quanto: integer or fp8 weights", online=True),
    _later("eetq", "EETQ: int8 weights per row", online=True),
    _later("higgs", "HIGGS: weights on Hadamard-rotated grids", online=True),
    _later("sinq", "SINQ: integer weights with two scales", online=True),
    _later("metal", "integer weights by groups for Metal kernels", online=True),
    _later("gemma", "Gemma's quantization-aware checkpoints"),
    _later("aqlm", "AQLM: additive codebooks"),
    _later("vptq", "VPTQ: vector codebooks"),
    _later("spqr", "SpQR: 3-bit weights with sparse outliers"),
    _later("bitnet", "BitNet: ternary weights"),
)

# Names whose engines dropped them, or that are bound to software of other makers.
_RETIRED = tuple(
    _later(name, summary, f"Its own engine dropped it. {_ONLINE}")
    for name, summary in (
        ("marlin", "checkpoints in Marlin's own layout"),
        ("gptq_marlin_24", "2:4-sparse GPTQ in Marlin's layout"),
        ("squeezellm", "SqueezeLLM: codebooks with sparse outliers"),
        ("deepspeedfp", "DeepSpeed's fp6 and fp8 weights"),
        ("tpu_int8", "int8 weights at load, on TPUs"),
        ("neuron_quant", "int8 weights at load, on Neuron devices"),
        ("bitblas", "checkpoints in BitBLAS's own layout"),
    )
) + tuple(
    _later(
        name, summary, "Its own engine dropped it. Leave the option out to run the file as it is."
    )
    for name, summary in (
        ("ipex", "AWQ and GPTQ through IPEX"),
        ("gptq_bitblas", "GPTQ, repacked for BitBLAS"),
    )
)

LATER: tuple[MethodName, ...] = (*_INTEGER, *_MX_AND_NV, *_LIBRARIES, *_RETIRED)
