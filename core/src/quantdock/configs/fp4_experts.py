"""Files of fp8 layers whose experts are in fp4, though their JSON speaks of fp8 alone.

>>> block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
>>> config = DeepseekV4Fp8Config.from_config(block)
>>> expert = LayerFacts(prefix="layers.0.ffn.experts.0.w1", kind="experts")
>>> str(config.scheme_for(expert).scheme)
'fp4_e2m1[1x32]:e8m0:even'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from quantdock.config import QuantizationConfig
from quantdock.configs.fp8 import Fp8Config
from quantdock.configs.fp8_checkpoint import Fp8CheckpointConfig
from quantdock.configs.mixed_checkpoint import IntegerLayers
from quantdock.configs.mxfp8 import Mxfp8Config
from quantdock.configs.other_words import ConfigOfOtherWords
from quantdock.configs.packed_floats import (
    NVFP4,
    NVFP4_INPUT,
    PackedFloats,
    PackedNames,
    mx_spec,
)
from quantdock.configs.stored import stored_weights
from quantdock.kernel import Kernel
from quantdock.platform import Platform
from quantdock.schemes import LayerFacts, Scheme


class PackedExpertsConfig(ConfigOfOtherWords):
    """Linear layers as the JSON says; experts packed unless the file stores them as fp8 or plain.

    Attributes:
        linear: the config of the file's words. experts: what its experts are in, and their reader.
    """

    linear: ClassVar[type[Fp8CheckpointConfig]]
    experts: ClassVar[Scheme]
    reader: ClassVar[type[IntegerLayers]] = PackedFloats

    def __init__(self) -> None:
        super().__init__()
        self._experts = self.reader(self.experts, f"{self.name}, of experts")
        self._found: set[bool] = set()  # whether a stored layer was of packed experts

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        """Return the config of the linear layers."""
        return cls.linear.from_config(config)

    def reader_of(self, facts: LayerFacts) -> QuantizationConfig:
        """Return what reads a layer; experts that are no bytes are as the JSON says."""
        weights = stored_weights(facts)
        is_packed = all(weight.weight.dtype in ("uint8", "int8") for weight in weights)
        is_own = facts.kind == "experts" and is_packed
        if facts.stored:
            self._found.add(is_own)
        return self._experts if is_own else super().reader_of(facts)

    def readers(self) -> tuple[QuantizationConfig, ...]:
        """Return the reader of linear layers and that of experts."""
        return (*super().readers(), self._experts)

    def notes(self) -> tuple[str, ...]:
        """Return what the readers found, and whether the name made no difference."""
        weight = self.experts.weight
        none = f"no experts are stored as {weight}, which {self.name} is for: it changes nothing"
        return (*super().notes(), *([none] if self._found == {False} else []))


class _DeepseekV4Experts(PackedFloats):
    """``weight`` and exponent bytes, under the name that all scales of such files have."""

    name = "deepseek_v4_fp8"
    names = PackedNames(scale=("weight_scale", "scale", "weight_scale_inv"))


class DeepseekV4Fp8Config(PackedExpertsConfig):
    """fp8 in blocks; experts in MXFP4, their activations as given."""

    name = "deepseek_v4_fp8"
    linear = Fp8Config
    experts = Scheme(weight=mx_spec("fp4_e2m1"))
    reader = _DeepseekV4Experts

    @classmethod
    def claim(
        cls,
        config: Mapping[str, Any],
        user: str | None,
        platform: Platform,
        kernels: Sequence[Kernel] = (),
    ) -> str | None:
        """Take over fp8 files that say that their experts are in fp4."""
        is_fp8 = str(config.get("quant_method")).lower() == Fp8Config.name
        is_fp4 = str(config.get("expert_dtype")).lower() == "fp4"
        return "expert_dtype is 'fp4'" if is_fp8 and is_fp4 else None


class _MinimaxM3Experts(PackedFloats):
    name = "minimax_m3_nvfp4"


class MinimaxM3Nvfp4Config(PackedExpertsConfig):
    """MXFP8; experts in NVFP4, as ModelOpt stores it."""

    name = "minimax_m3_nvfp4"
    linear = Mxfp8Config
    experts = Scheme(weight=NVFP4, activation=NVFP4_INPUT)
    reader = _MinimaxM3Experts
