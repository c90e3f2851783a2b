"""What methods mean on the NPU: its units multiply fp4 by fp4 and by fp8, in groups of 32."""

from __future__ import annotations

from dataclasses import replace

from quantdock.configs.mxfp4 import Mxfp4Config
from quantdock.configs.online import OnlineConfig
from quantdock.formats import parse_spec
from quantdock.schemes import Scheme, parse_scheme

TOKENS = parse_spec("fp4_e2m1[1x32]:e8m0:even:dynamic")


class NpuMxfp4Config(Mxfp4Config):
    """``mxfp4`` on the NPU: linear layers as well as experts, with activations in fp4 too."""

    quantized_kinds = frozenset({"linear", "experts"})

    def executed(self, scheme: Scheme) -> Scheme:
        """Return ``scheme`` with activations in fp4."""
        return replace(scheme, activation=TOKENS)


class NpuW4A8Config(OnlineConfig):
    """The weights of mxfp4 with activations in fp8."""

    name = "npu_w4a8"
    online_schemes = (parse_scheme("fp4_e2m1[1x32]:e8m0:even x fp8_e4m3[1x32]:e8m0:ceil:dynamic"),)
