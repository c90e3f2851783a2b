"""The method names that users of any engine may type: a table, one row a name.

Rows are written in the spelling of the engine they come from; case and "_" against "-" make no
difference (spelling.py), so there is no row for those. A remedy says what a user can do today.
"""

from __future__ import annotations

from quantdock.method_name import MethodName

_ONLINE = (
    "Load the 16-bit original of this model and quantize it at load: "
    "quantization='fp8_per_channel' (or fp8_per_block, mxfp8)."
)


def _supported(
    name: str, target: str, summary: str, *, online: bool = False, serialized: bool = True
) -> MethodName:
    return MethodName(
        name=name,
        target=f"quantdock.configs.{target}",
        summary=summary,
        online=online,
        serialized=serialized,
    )


def _alias(name: str, of: str, summary: str) -> MethodName:
    return MethodName(name=name, alias_of=of, summary=summary)


def _later(name: str, summary: str, remedy: str = _ONLINE, *, online: bool = False) -> MethodName:
    return MethodName(name=name, summary=summary, remedy=remedy, online=online)


def _via_transformers(what: str) -> str:
    return (
        f"{what} Save the result with save_pretrained and load that folder here; "
        "it can be quantized at load with quantization='fp8_per_channel'."
    )


SUPPORTED = (
    _supported(
        "fp8",
        "fp8:Fp8Config",
        "fp8 weights per tensor or per block; at load, the best fp8 scheme of the device",
        online=True,
    ),
    _supported(
        "fp8_per_tensor",
        "online:Fp8PerTensorConfig",
        "fp8 at load, one scale a weight",
        online=True,
        serialized=False,
    ),
    _supported(
        "fp8_per_channel",
        "online:Fp8PerChannelConfig",
        "fp8 at load, one scale a weight row, per-token activations",
        online=True,
        serialized=False,
    ),
    _supported(
        "fp8_per_block",
        "online:Fp8PerBlockConfig",
        "fp8 at load, one scale a 128x128 block, 1x128 activations",
        online=True,
        serialized=False,
    ),
    _supported(
        "mxfp8",
        "mxfp8:Mxfp8Config",
        "OCP microscaling fp8: one power-of-two scale for 32 inputs",
        online=True,
    ),
    _supported(
        "w8a8_fp8",
        "w8a8_fp8:W8A8Fp8Config",
        "fp8 weights per row, per-token fp8 activations",
    ),
    _supported(
        "fbgemm_fp8",
        "fbgemm_fp8:FbgemmFp8Config",
        "FBGEMM's fp8: per-row weights, per-token activations with an upper bound",
    ),
    _supported(
        "w8a8_int8",
        "w8a8_int8:W8A8Int8Config",
        "int8 weights per row, per-token int8 activations",
        online=True,
    ),
    _supported(
        "blockwise_int8",
        "blockwise_int8:BlockwiseInt8Config",
        "int8 weights by blocks, int8 activations by groups of a token",
    ),
    _supported(
        "int8_per_channel_weight_only",
        "int8_per_channel_weight_only:Int8PerChannelWeightOnlyConfig",
        "int8 weights at load, one scale a row; activations as given",
        online=True,
        serialized=False,
    ),
    _supported(
        "compressed-tensors",
        "compressed_tensors:CompressedTensorsConfig",
        "compressed-tensors: integer, fp8 and mxfp8 schemes by groups of layers",
    ),
    _supported(
        "awq",
        "awq:AWQConfig",
        "AWQ: 4-bit weights by groups with zero points, in AutoAWQ's three layouts",
    ),
    _supported(
        "gptq",
        "gptq:GPTQConfig",
        "GPTQ: integer weights of 2, 3, 4 or 8 bits by groups, act-order, a scheme a layer",
    ),
    _supported(
        "awq_marlin",
        "repacked:AWQMarlinConfig",
        "AWQ by a kernel that repacks codes at load, or an error; awq files take it where one fits",
    ),
    _supported(
        "gptq_marlin",
        "repacked:GPTQMarlinConfig",
        "GPTQ by a kernel that repacks codes at load, or an error; gptq files take it likewise",
    ),
    _supported(
        "auto-round",
        "auto_round:AutoRoundConfig",
        "AutoRound: integer weights in GPTQ, AWQ or own packing, fp8, overrides by layer",
    ),
    _supported(
        "quark",
        "quark:QuarkConfig",
        "Quark: int4, uint4, int8 and fp8 schemes by layers and classes of layers",
    ),
    _supported(
        "modelopt",
        "modelopt:ModelOptConfig",
        "ModelOpt: fp8, int8 and int4 AWQ, one for all layers or by layer",
    ),
    _supported(
        "modelopt_fp8",
        "modelopt:ModelOptFp8Config",
        "ModelOpt's fp8: per tensor, per row or in blocks",
    ),
    _supported(
        "mxfp4",
        "mxfp4:Mxfp4Config",
        "OCP microscaling fp4: the experts of gpt-oss, or experts at load",
        online=True,
    ),
    _supported(
        "mxfp4_online",
        "online:Mxfp4OnlineConfig",
        "OCP microscaling fp4 at load: linear layers and experts",
        online=True,
        serialized=False,
    ),
    _supported(
        "nvfp4_online",
        "online:Nvfp4OnlineConfig",
        "NVFP4 at load: linear layers and experts, activations too",
        online=True,
        serialized=False,
    ),
    _supported(
        "none",
        "unquantized:UnquantizedConfig",
        "no quantization; a quantized checkpoint is decoded to the model's dtype",
        serialized=False,
    ),
)

ALIASES = (
    _alias("unquant", "none", "another engine's word for none"),
    _alias("unquantized", "none", "the long word for none"),
    _alias("ptpc_fp8", "fp8_per_channel", "per-token activations, per-channel weights"),
    _alias("gpt_oss_mxfp4", "mxfp4", "the mxfp4 files of gpt-oss"),
    _alias("nvfp4", "modelopt_fp4", "NVFP4, as ModelOpt writes it"),
    _alias("auto_awq", "awq", "awq by whichever kernel comes first, one that repacks or not"),
    _alias("auto_gptq", "gptq", "gptq by whichever kernel comes first, likewise"),
    _alias("inc", "auto-round", "Neural Compressor's word for auto-round"),
    _alias("autoround", "auto-round", "auto-round without its hyphen"),
    _alias("intel/auto-round", "auto-round", "what its first releases wrote into files"),
    _alias("int8_per_channel", "int8_per_channel_weight_only", "its short word"),
    _alias("bnb", "bitsandbytes", "short for bitsandbytes"),
)

_INTEGER = (
    _later("moe_wna16", "AWQ or GPTQ experts, integer weights, 16-bit activations"),
    _later("experts_int8", "int8 expert weights at load", online=True),
    _later("auto-round-int8", "AutoRound: int8 weights and activations"),
    _later("w4afp8", "int4 expert weights, fp8 activations"),
    _later("rtn", "round-to-nearest int4 or int8 weights at load", online=True),
    _later("qoq", "QServe's W4A8 with two levels of scales"),
    _later("qqq", "QQQ's W4A8 by groups"),
    _later("mlx_q4", "MLX 4-bit weights by groups"),
    _later("mlx_q8", "MLX 8-bit weights by groups"),
)

_MX_AND_NV = (
    _later("mxfp_w4a8", "microscaling fp4 weights, fp8 activations"),
    _later("deepseek_v4_fp8", "block fp8 linears with microscaling fp4 experts"),
    _later("minimax_m3_nvfp4", "microscaling fp8 linears with NVFP4 experts"),
    _later(
        "modelopt_mxfp8",
        "ModelOpt MXFP8",
        "Load the 16-bit original of this model with quantization='mxfp8'.",
    ),
    _later("modelopt_fp4", "ModelOpt NVFP4: fp4 weights, two levels of scales"),
    _later("modelopt_mixed", "ModelOpt with a scheme for each layer"),
    _later("nvfp4_per_token", "NVFP4 experts at load, per-token activations", online=True),
    _later("petit_nvfp4", "NVFP4 weights for devices without fp4 units"),
    _later("fp_quant", "FP-Quant: microscaling or NV fp4 with a Hadamard rotation", online=True),
    _later("fouroversix", "NVFP4 with adaptive block scales", online=True),
    _later("quark_mxfp4", "Quark: microscaling fp4, also at load", online=True),
    _later("quark_int4fp8_moe", "int4 expert weights with fp8 arithmetic at load", online=True),
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
        _via_transformers("Decode it in transformers: from_pretrained(folder, gguf_file=name)."),
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
        ("ipex", "AWQ and GPTQ through IPEX"),
        ("bitblas", "checkpoints in BitBLAS's own layout"),
        ("gptq_bitblas", "GPTQ, repacked for BitBLAS"),
    )
)

NAMES: tuple[MethodName, ...] = (
    *SUPPORTED,
    *ALIASES,
    *_INTEGER,
    *_MX_AND_NV,
    *_LIBRARIES,
    *_RETIRED,
)
