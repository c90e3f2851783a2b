"""quantization='none'."""

from __future__ import annotations

import pytest

from quantdock.configs.unquantized import UnquantizedConfig
from quantdock.errors import ConfigError
from quantdock.schemes import LayerFacts, parse_scheme


@pytest.mark.parametrize("kind", ["linear", "embedding", "head", "experts", "attention"])
def test_every_layer_stays(kind: str) -> None:
    for config in (
        UnquantizedConfig.from_config({"quant_method": "fp8"}),
        UnquantizedConfig.online(),
    ):
        decision = config.scheme_for(LayerFacts(prefix="a", kind=kind))
        assert (decision.kind, decision.source) == ("unquantized", "quantization = 'none'")


def test_choices_against_it_are_refused() -> None:
    assert UnquantizedConfig.online(choices={"a": "none"}).is_online
    with pytest.raises(ConfigError, match=r"choices ask for \{'a': 'fp8'\}"):
        UnquantizedConfig.online(choices={"a": "fp8"})


def test_it_reads_no_quantized_tensor() -> None:
    scheme = parse_scheme("fp8_e4m3[*x*]")
    with pytest.raises(ConfigError, match=r"cannot read a.b as fp8_e4m3\[\*x\*\]"):
        UnquantizedConfig().slots(scheme, 1, 1, LayerFacts(prefix="a.b"))
    with pytest.raises(ConfigError, match=r"cannot read a\.b"):
        UnquantizedConfig().decode(scheme, [], LayerFacts(prefix="a.b"))
