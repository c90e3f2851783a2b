"""moe_wna16: GPTQ and AWQ files of mixtures of experts, linear layers and experts alike.

The name is that of a kernel for experts; here experts run by the kernels of linear layers.

>>> from quantdock.schemes import LayerFacts
>>> block = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}
>>> config = MoeWna16Config.from_config(block)
>>> facts = LayerFacts(prefix="model.layers.0.mlp.experts.0.up_proj", kind="experts")
>>> str(config.scheme_for(facts).scheme)
'int4[1x128]'
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from quantdock.config import QuantizationConfig
from quantdock.configs.awq import AWQConfig
from quantdock.configs.fields import Fields
from quantdock.configs.gptq import GPTQConfig
from quantdock.configs.other_words import ConfigOfOtherWords

_WORDS: Mapping[str, type[GPTQConfig] | type[AWQConfig]] = MappingProxyType(
    {"gptq": GPTQConfig, "awq": AWQConfig}
)


class MoeWna16Config(ConfigOfOtherWords):
    """A GPTQ or AWQ file, asked for as ``moe_wna16``."""

    name = "moe_wna16"

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        """Return the config of the dialect that the file says; of ``moe_wna16``, its linear one."""
        fields = Fields(config, cls.name)
        field = "linear_quant_method" if fields.get("linear_quant_method") else "quant_method"
        found = fields.choice(field, _WORDS, None)
        if found is None:
            fields.refuse(field, ", ".join(map(repr, _WORDS)))
        return found.from_config(config)
