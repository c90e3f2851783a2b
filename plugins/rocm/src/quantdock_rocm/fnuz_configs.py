"""The fp8 methods on devices that compute in e4m3fnuz: the core's configs, decoded to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from quantdock.configs.auto_round import AutoRoundConfig
from quantdock.configs.compressed_tensors import CompressedTensorsConfig
from quantdock.configs.fbgemm_fp8 import FbgemmFp8Config
from quantdock.configs.fp4_experts import DeepseekV4Fp8Config, MinimaxM3Nvfp4Config
from quantdock.configs.fp8 import Fp8Config
from quantdock.configs.modelopt import (
    ModelOptConfig,
    ModelOptFp4Config,
    ModelOptFp8Config,
    ModelOptMixedConfig,
    ModelOptMxfp8Config,
    PetitNvfp4Config,
)
from quantdock.configs.mxfp8 import Mxfp8Config
from quantdock.configs.nvfp4_online import Nvfp4OnlineConfig
from quantdock.configs.online import Fp8PerBlockConfig, Fp8PerChannelConfig, Fp8PerTensorConfig
from quantdock.configs.quark import QuarkConfig
from quantdock.configs.quark_int4fp8_moe import QuarkInt4Fp8MoeConfig
from quantdock.configs.quark_mxfp4 import QuarkMxfp4Config
from quantdock.configs.w4afp8 import W4AFp8Config
from quantdock.configs.w8a8_fp8 import W8A8Fp8Config
from quantdock_rocm.fnuz import EXECUTED, STORED, as_executed, as_stored, convert_weight

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.methods.slot import Slot
    from quantdock.numerics.canonical import CanonicalWeight
    from quantdock.schemes import KVCacheSpec, LayerFacts, Scheme

    _Config = Fp8Config  # any config with the core's meaning; a mixin at run time
else:
    _Config = object


class FnuzDecoding(_Config):
    """Mixed in before a config: files stay e4m3fn, schemes and decoded weights are e4m3fnuz."""

    def executed(self, scheme: Scheme) -> Scheme:
        """Return the core's scheme in e4m3fnuz."""
        return as_executed(super().executed(scheme))

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the core's slots: what is stored does not change."""
        return super().slots(as_stored(scheme), n, k, facts)

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the core's weight in e4m3fnuz codes, with the same real values."""
        return convert_weight(super().decode(as_stored(scheme), stored, facts), scheme)

    def executed_kv_cache(self, spec: KVCacheSpec) -> KVCacheSpec:
        """Return the core's spec with e4m3fnuz where it says e4m3."""
        spec = super().executed_kv_cache(spec)
        return replace(spec, element=EXECUTED) if spec.element == STORED else spec

    def decode_kv_scale(self, stored: Tensor, spec: KVCacheSpec | None = None) -> Tensor:
        """Return the scale doubled, as codes of the same bits mean half as much."""
        from quantdock.numerics.fnuz import double_scale

        scale = super().decode_kv_scale(stored, spec)
        return scale if spec is not None and spec.element != EXECUTED else double_scale(scale)


class Fp8FnuzConfig(FnuzDecoding, Fp8Config):
    """fp8."""


class Fp8PerTensorFnuzConfig(FnuzDecoding, Fp8PerTensorConfig):
    """fp8_per_tensor."""


class Fp8PerChannelFnuzConfig(FnuzDecoding, Fp8PerChannelConfig):
    """fp8_per_channel."""


class Fp8PerBlockFnuzConfig(FnuzDecoding, Fp8PerBlockConfig):
    """fp8_per_block."""


class W8A8Fp8FnuzConfig(FnuzDecoding, W8A8Fp8Config):
    """w8a8_fp8."""


class FbgemmFp8FnuzConfig(FnuzDecoding, FbgemmFp8Config):
    """fbgemm_fp8."""


class CompressedTensorsFnuzConfig(FnuzDecoding, CompressedTensorsConfig):
    """compressed-tensors."""


class Mxfp8FnuzConfig(FnuzDecoding, Mxfp8Config):
    """mxfp8."""


class ModelOptFnuzConfig(FnuzDecoding, ModelOptConfig):
    """modelopt."""


class ModelOptFp8FnuzConfig(FnuzDecoding, ModelOptFp8Config):
    """modelopt_fp8."""


class ModelOptFp4FnuzConfig(FnuzDecoding, ModelOptFp4Config):
    """modelopt_fp4."""


class ModelOptMxfp8FnuzConfig(FnuzDecoding, ModelOptMxfp8Config):
    """modelopt_mxfp8."""


class ModelOptMixedFnuzConfig(FnuzDecoding, ModelOptMixedConfig):
    """modelopt_mixed."""


class PetitNvfp4FnuzConfig(FnuzDecoding, PetitNvfp4Config):
    """petit_nvfp4."""


class QuarkFnuzConfig(FnuzDecoding, QuarkConfig):
    """quark."""


class QuarkMxfp4FnuzConfig(FnuzDecoding, QuarkMxfp4Config):
    """quark_mxfp4."""


class QuarkInt4Fp8MoeFnuzConfig(FnuzDecoding, QuarkInt4Fp8MoeConfig):
    """quark_int4fp8_moe."""


class AutoRoundFnuzConfig(FnuzDecoding, AutoRoundConfig):
    """auto-round."""


class DeepseekV4Fp8FnuzConfig(FnuzDecoding, DeepseekV4Fp8Config):
    """deepseek_v4_fp8."""


class W4AFp8FnuzConfig(FnuzDecoding, W4AFp8Config):
    """w4afp8."""


class MinimaxM3Nvfp4FnuzConfig(FnuzDecoding, MinimaxM3Nvfp4Config):
    """minimax_m3_nvfp4."""


class Nvfp4OnlineFnuzConfig(FnuzDecoding, Nvfp4OnlineConfig):
    """nvfp4_online."""
