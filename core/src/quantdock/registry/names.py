"""The method names that users of any engine may type: a table, one row a name.

Rows are written in the spelling of the engine they come from; case and "_" against "-" make no
difference (spelling.py), so there is no row for those.
"""

from __future__ import annotations

from quantdock.method_name import MethodName
from quantdock.registry.names_to_come import LATER


def _supported(
    name: str,
    target: str,
    summary: str,
    *,
    online: bool = False,
    serialized: bool = True,
    at_load: str = "",
    on_disk: bool = False,
) -> MethodName:
    return MethodName(
        name=name,
        target=f"quantdock.configs.{target}",
        summary=summary,
        online=online,
        serialized=serialized,
        at_load=at_load,
        on_disk=on_disk,
    )


def _alias(name: str, of: str, summary: str) -> MethodName:
    return MethodName(name=name, alias_of=of, summary=summary)


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
        at_load="fp8_per_channel",
    ),
    _supported(
        "fbgemm_fp8",
        "fbgemm_fp8:FbgemmFp8Config",
        "FBGEMM's fp8: per-row weights, per-token activations with an upper bound",
        at_load="fp8_per_channel",
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
        at_load="w8a8_int8",
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
        "compressed-tensors: integer, fp8, MX and NV schemes by groups of layers",
        on_disk=True,
    ),
    _supported(
        "awq",
        "awq:AWQConfig",
        "AWQ: 4-bit weights by groups with zero points, in AutoAWQ's three layouts",
        on_disk=True,
    ),
    _supported(
        "gptq",
        "gptq:GPTQConfig",
        "GPTQ: integer weights of 2, 3, 4 or 8 bits by groups, act-order, a scheme a layer",
        on_disk=True,
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
        "AutoRound: integers in GPTQ, AWQ or own packing, fp8, MX, NV, overrides by layer",
    ),
    _supported(
        "quark",
        "quark:QuarkConfig",
        "Quark: integer, fp8, MXFP4 and MXFP6 schemes by layers and classes of layers",
        on_disk=True,
    ),
    _supported(
        "quark_mxfp4",
        "quark_mxfp4:QuarkMxfp4Config",
        "Quark's MXFP4 files; at load, weights and activations in MXFP4",
        online=True,
    ),
    _supported(
        "quark_int4fp8_moe",
        "quark_int4fp8_moe:QuarkInt4Fp8MoeConfig",
        "int4 experts in fp8 arithmetic, at load",
        online=True,
        serialized=False,
        at_load="fp8",
    ),
    _supported(
        "modelopt",
        "modelopt:ModelOptConfig",
        "ModelOpt: fp8, MXFP8, NVFP4, int8 and int4 AWQ, one for all layers or by layer",
        on_disk=True,
    ),
    _supported(
        "modelopt_fp8",
        "modelopt:ModelOptFp8Config",
        "ModelOpt's fp8: per tensor, per row or in blocks",
        at_load="fp8_per_tensor",
    ),
    _supported(
        "modelopt_fp4",
        "modelopt:ModelOptFp4Config",
        "ModelOpt's NVFP4: fp4 weights under two levels of scales, activations too or as given",
        at_load="nvfp4_online",
    ),
    _supported(
        "modelopt_mxfp8",
        "modelopt:ModelOptMxfp8Config",
        "ModelOpt's MXFP8: one power-of-two scale for 32 inputs",
        at_load="mxfp8",
    ),
    _supported(
        "modelopt_mixed",
        "modelopt:ModelOptMixedConfig",
        "ModelOpt with an algorithm for each layer",
    ),
    _supported(
        "petit_nvfp4",
        "modelopt:PetitNvfp4Config",
        "ModelOpt's NVFP4 weights alone: activations as given, no scale of an input needed",
        at_load="nvfp4_online",
    ),
    _supported(
        "moe_wna16",
        "moe_wna16:MoeWna16Config",
        "GPTQ and AWQ files with experts, 16-bit activations",
    ),
    _supported(
        "deepseek_v4_fp8",
        "fp4_experts:DeepseekV4Fp8Config",
        "fp8 in blocks, experts in MXFP4",
    ),
    _supported(
        "w4afp8",
        "w4afp8:W4AFp8Config",
        "fp8 in blocks, experts in int4 by groups with static fp8 activations",
    ),
    _supported(
        "minimax_m3_nvfp4",
        "fp4_experts:MinimaxM3Nvfp4Config",
        "MXFP8, experts in NVFP4",
    ),
    _supported(
        "mxfp4",
        "mxfp4:Mxfp4Config",
        "OCP microscaling fp4: the experts of gpt-oss, or experts at load",
        online=True,
        at_load="mxfp4_online",
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
        "nvfp4_online:Nvfp4OnlineConfig",
        "NVFP4 at load: linear layers and experts, activations too; of fp8 files, their experts",
        online=True,
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

NAMES: tuple[MethodName, ...] = (
    *SUPPORTED,
    *ALIASES,
    *LATER,
)
