"""``quantdock.convert_checkpoint``: convert a folder, asking the model's classes for its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from quantdock.arguments import checked
from quantdock.convert.conversion import Conversion, Report, plan_conversion
from quantdock.convert.goals import Integers
from quantdock.integrations.transformers.model_layers import model_layers


@checked()
def convert_checkpoint(
    source: str | Path,
    target: str | Path,
    to: str,
    *,
    ignore: Sequence[str] = (),
    choices: Mapping[str, str] | None = None,
    bits: int | None = None,
    group_size: int | None = None,
    symmetric: bool | None = None,
    max_shard_bytes: int | None = None,
    exact: bool = False,
    trust_remote_code: bool = False,
) -> Report:
    """Write the checkpoint folder ``source`` to the new folder ``target``, converted.

    An interrupted call is taken up by the next one. The result loads in QuantDock, and in the
    libraries that the format comes from.

    Args:
        to: fp8_per_tensor, fp8_per_channel, fp8_per_block; mxfp8, mxfp6, mxfp6a8, mxfp4, mxfp4a4,
            nvfp4, modelopt (NVFP4), quark (MXFP4); gptq, awq, w8a8_int8, compressed-tensors,
            w4a16, w8a16 or w8a8, by round-to-nearest; "none" decodes a quantized checkpoint to
            plain weights. A quantized one is moved to gptq, awq, compressed-tensors, w8a8_int8,
            modelopt or quark as it is, where that can hold its codes.
        ignore: patterns of layers to copy as they are.
        choices: pattern -> another scheme, or "none", for the layers it matches.
        bits: of an integer weight. group_size: columns that share a scale, -1 for all.
        symmetric: False: with zero points (for w8a8: of the inputs).
        max_shard_bytes: of one file of weights; None: one file for each of ``source``.
        exact: refuse to make fp8 of other floats where a value would change.
    Raises:
        QuantDockError: the text says what is wrong, why, and what to do.
    """
    planned = plan(
        source,
        target,
        to,
        ignore=ignore,
        choices=choices,
        bits=bits,
        group_size=group_size,
        symmetric=symmetric,
        max_shard_bytes=max_shard_bytes,
        exact=exact,
        trust_remote_code=trust_remote_code,
    )
    return planned.run()


def plan(
    source: str | Path,
    target: str | Path,
    to: str,
    *,
    ignore: Sequence[str] = (),
    choices: Mapping[str, str] | None = None,
    bits: int | None = None,
    group_size: int | None = None,
    symmetric: bool | None = None,
    max_shard_bytes: int | None = None,
    exact: bool = False,
    trust_remote_code: bool = False,
) -> Conversion:
    """Return the conversion that ``convert_checkpoint`` runs, for those who show its progress."""
    return plan_conversion(
        source,
        target,
        to,
        ignore=ignore,
        choices=choices,
        integers=Integers(bits=bits, group_size=group_size, symmetric=symmetric),
        max_shard_bytes=max_shard_bytes,
        exact=exact,
        find_layers=partial(model_layers, trust_remote_code=trust_remote_code),
    )
