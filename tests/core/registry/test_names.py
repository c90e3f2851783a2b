"""The table of names: complete for the users of other engines, and consistent."""

from __future__ import annotations

import pytest

from quantdock.errors import MethodNotYetError
from quantdock.registry import get_quantization_config, method_names
from quantdock.registry.compatibility import PAIRS
from quantdock.registry.names import NAMES
from quantdock.registry.spelling import spell
from quantdock.testing import use_plugins

# What their users may type for --quantization, or find as quant_method in a file.
SGLANG = """
    fp8 mxfp8 minimax_m3_nvfp4 blockwise_int8 modelopt modelopt_fp8 modelopt_fp4 modelopt_mixed
    nvfp4_online w8a8_fp8 w8a8_int8 auto-round-int8 awq awq_marlin gptq gptq_marlin moe_wna16
    compressed-tensors compressed_tensors bitsandbytes gguf w4afp8 petit_nvfp4 quark quark_mxfp4
    quark_int4fp8_moe auto-round mxfp4 mxfp_w4a8 modelslim humming mlx_q4 mlx_q8 unquant marlin
    gptq_marlin_24 experts_int8 qoq
"""
VLLM = """
    awq awq_marlin auto_awq gptq gptq_marlin auto_gptq compressed-tensors fp8 deepseek_v4_fp8
    fp8_per_tensor fp8_per_block fp8_per_channel online int8_per_channel_weight_only
    int8_per_channel nvfp4_per_token mxfp8 modelopt_mxfp8 mxfp4 gpt_oss_mxfp4 modelopt modelopt_fp4
    modelopt_mixed quark torchao inc auto-round humming moe_wna16 experts_int8 fbgemm_fp8 fp_quant
    ascend bitsandbytes gguf ptpc_fp8 aqlm qqq hqq rtn bitblas gptq_bitblas ipex tpu_int8
    neuron_quant deepspeedfp marlin gptq_marlin_24 squeezellm petit_nvfp4
"""
TRANSFORMERS = """
    bitsandbytes gptq awq aqlm vptq quanto eetq higgs hqq compressed-tensors fbgemm_fp8 torchao gguf
    bitnet spqr fp8 quark fp_quant auto-round mxfp4 nvfp4 mxfp8 metal fouroversix sinq gemma
"""
EXTRA = "none unquantized auto_round mxfp4_online nvfp4 bnb"
ALL = sorted(set(f"{SGLANG} {VLLM} {TRANSFORMERS} {EXTRA}".split()))
SUPPORTED = {
    "fp8": "Fp8Config",
    "fp8_per_tensor": "Fp8PerTensorConfig",
    "fp8_per_channel": "Fp8PerChannelConfig",
    "fp8_per_block": "Fp8PerBlockConfig",
    "mxfp8": "Mxfp8Config",
    "w8a8_fp8": "W8A8Fp8Config",
    "fbgemm_fp8": "FbgemmFp8Config",
    "w8a8_int8": "W8A8Int8Config",
    "blockwise_int8": "BlockwiseInt8Config",
    "int8_per_channel_weight_only": "Int8PerChannelWeightOnlyConfig",
    "compressed-tensors": "CompressedTensorsConfig",
    "awq": "AWQConfig",
    "gptq": "GPTQConfig",
    "awq_marlin": "AWQMarlinConfig",
    "gptq_marlin": "GPTQMarlinConfig",
    "auto-round": "AutoRoundConfig",
    "quark": "QuarkConfig",
    "modelopt": "ModelOptConfig",
    "modelopt_fp8": "ModelOptFp8Config",
    "modelopt_fp4": "ModelOptFp4Config",
    "modelopt_mxfp8": "ModelOptMxfp8Config",
    "modelopt_mixed": "ModelOptMixedConfig",
    "petit_nvfp4": "PetitNvfp4Config",
    "quark_mxfp4": "QuarkMxfp4Config",
    "quark_int4fp8_moe": "QuarkInt4Fp8MoeConfig",
    "moe_wna16": "MoeWna16Config",
    "deepseek_v4_fp8": "DeepseekV4Fp8Config",
    "w4afp8": "W4AFp8Config",
    "minimax_m3_nvfp4": "MinimaxM3Nvfp4Config",
    "mxfp4": "Mxfp4Config",
    "mxfp4_online": "Mxfp4OnlineConfig",
    "nvfp4_online": "Nvfp4OnlineConfig",
    "none": "UnquantizedConfig",
}
# Names that need a kernel which a plain CPU does not have.
REPACKED = {"awq_marlin", "gptq_marlin"}
RUNNABLE = sorted(row.name for row in NAMES if row.target and row.name not in REPACKED)


@pytest.mark.parametrize("name", ALL)
def test_every_name_of_other_engines_has_a_row(name):
    assert spell(name) in {spell(row.name) for row in NAMES}


@pytest.mark.parametrize("name", ALL)
def test_every_name_works_or_says_what_to_do(name):
    with use_plugins():
        try:
            get_quantization_config(name, "cpu:generic")
        except MethodNotYetError as error:
            assert len(error.todo) > 40
            assert f"runs on cpu:generic: {', '.join(RUNNABLE)}\n" in str(error)


@pytest.mark.parametrize(("name", "config"), SUPPORTED.items())
def test_supported_names_have_their_class(name, config):
    with use_plugins():
        assert get_quantization_config(name, "cpu:generic").__name__ == config


def test_a_class_is_called_as_its_row():
    with use_plugins():
        for row in NAMES:
            if row.target:
                assert get_quantization_config(row.name, "cpu:generic").name == row.name


def test_at_load_rows_are_those_whose_class_can():
    from quantdock.errors import ConfigError

    with use_plugins():
        for row in NAMES:
            if row.target is None or row.name == "none":
                continue
            config = get_quantization_config(row.name, "cpu:generic")
            if row.online:
                assert config.online().is_online
            else:
                with pytest.raises(ConfigError, match="cannot quantize a 16-bit checkpoint"):
                    config.online()


def test_remedies_name_only_what_works():
    supported = {row.name for row in NAMES if row.target}
    for row in NAMES:
        if row.remedy and "quantization='" in row.remedy:
            advised = row.remedy.partition("quantization='")[2].partition("'")[0]
            assert advised in supported, row.name


def test_the_table_of_users_and_files_knows_its_words():
    known = {spell(row.name) for row in NAMES}
    for pair in PAIRS:
        assert {spell(pair.user), spell(pair.file)} <= known
        assert pair.takes in ("user", "file")
    keys = [(pair.user, pair.file) for pair in PAIRS]
    assert len(keys) == len(set(keys))


def test_method_names_carry_their_distribution():
    with use_plugins():
        rows = method_names()
    assert {row.distribution for row in rows} == {"quantdock"}
    assert tuple(row.row for row in rows) == NAMES


def test_names_for_files_point_to_what_makes_the_like_of_16_bit_weights():
    from quantdock.convert.goals import GOALS

    rows = {row.name: row for row in NAMES}
    told = {row.name: rows[row.at_load] for row in NAMES if row.at_load}
    assert all(row.online for row in told.values())
    experts_alone = {"mxfp4", "quark_int4fp8_moe"}
    assert {name for name in told if rows[name].online} == experts_alone
    written = {row.name for row in NAMES if row.name in GOALS and row.target and not row.online}
    assert {row.name for row in NAMES if row.on_disk} == written
