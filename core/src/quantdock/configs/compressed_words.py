"""compressed-tensors files read by another method: they must be of the kind that its name promises.

>>> args = {"num_bits": 8, "type": "int", "strategy": "channel"}
>>> group = {"targets": ["Linear"], "weights": args, "format": "int-quantized"}
>>> block = {"quant_method": "compressed-tensors", "config_groups": {"all": group}}
>>> require_kind("w8a8_int8", block, QuantSpec(element="int8", rows=1))
>>> require_kind("w8a8_fp8", block, QuantSpec(element="fp8_e4m3", rows=1))
Traceback (most recent call last):
    ...
quantdock.errors.ConfigError: w8a8_fp8 was asked for, and config_groups.all is int8[1x*].
  w8a8_fp8 stands for fp8_e4m3[1x*], one code a byte
Leave the option out, or ask for 'compressed-tensors': it reads what the file says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantdock.configs.compressed_args import METHOD
from quantdock.configs.compressed_tensors import CompressedTensorsConfig
from quantdock.errors import ConfigError
from quantdock.formats import QuantSpec

_BYTES = ("floats", "integers")  # words of Format for one code a byte


def require_kind(name: str, block: Mapping[str, Any], *specs: QuantSpec) -> None:
    """Raise if ``block`` is compressed-tensors' and states weights of another kind than ``specs``.

    Args:
        name: of the method that is to read the file, one code a byte.
    Raises:
        ConfigError: a group is of another kind, or a field has an impossible value.
        MethodNotYetError: the file is of a kind to come.
    """
    if str(block.get("quant_method")).strip().lower().replace("_", "-") != METHOD:
        return
    for group in CompressedTensorsConfig.from_config(block).groups:
        scheme = group.scheme
        if scheme is not None and (scheme.weight not in specs or group.storage not in _BYTES):
            packed = ", packed" if group.storage == "words" else ""
            raise ConfigError(
                f"{name} was asked for, and {group.source} is {scheme.weight}{packed}.",
                why=[f"{name} stands for {' and '.join(map(str, specs))}, one code a byte"],
                todo=f"Leave the option out, or ask for {METHOD!r}: it reads what the file says.",
                field="config_groups",
            )
