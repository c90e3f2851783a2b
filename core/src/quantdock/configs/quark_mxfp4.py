"""quark_mxfp4: Quark's MXFP4 files, or 16-bit weights and their activations in MXFP4 at load.

>>> config = QuarkMxfp4Config.online()
>>> str(config.online_schemes[0])
'fp4_e2m1[1x32]:e8m0:even x fp4_e2m1[1x32]:e8m0:even:dynamic'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from quantdock.config import QuantizationConfig
from quantdock.configs.other_words import ConfigOfOtherWords
from quantdock.configs.packed_floats import PackedFloats, mx_spec
from quantdock.configs.quark import QuarkConfig
from quantdock.errors import ConfigError
from quantdock.schemes import Scheme

_MXFP4 = mx_spec("fp4_e2m1")


class QuarkMxfp4Config(ConfigOfOtherWords):
    """A Quark file with layers in MXFP4; others may be encoded otherwise."""

    name = "quark_mxfp4"
    online_schemes: ClassVar[tuple[Scheme, ...]] = (
        Scheme(weight=_MXFP4, activation=replace(_MXFP4, dynamic=True)),
    )

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        """Return the config of a Quark file, in which some layers are MXFP4."""
        quark = QuarkConfig.from_config(config)
        weights = [r.scheme.weight for r in quark.readers if isinstance(r, PackedFloats)]
        if all(weight.element != _MXFP4.element for weight in weights):
            raise ConfigError(
                f"{cls.name} was asked for, and the checkpoint has no layers in MXFP4.",
                why=["no weight of its quantization_config is fp4 with e8m0 scales"],
                todo="Leave the option out, or ask for 'quark', which reads what the file says.",
                field="global_quant_config",
            )
        return quark
