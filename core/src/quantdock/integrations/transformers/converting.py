"""``quantdock.convert_checkpoint``: convert a folder, asking the model's classes for its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from quantdock.convert.conversion import Conversion, Report, plan_conversion
from quantdock.integrations.transformers.model_layers import model_layers


def convert_checkpoint(
    source: str | Path,
    target: str | Path,
    to: str,
    *,
    ignore: Sequence[str] = (),
    choices: Mapping[str, str] | None = None,
    max_shard_bytes: int | None = None,
    trust_remote_code: bool = False,
) -> Report:
    """Write the checkpoint folder ``source`` to the new folder ``target``, converted.

    An interrupted call is taken up by the next one. The result loads in QuantDock, transformers
    and compressed-tensors.

    Args:
        to: fp8_per_tensor, fp8_per_channel, fp8_per_block or mxfp8; "none" decodes a quantized
            checkpoint to plain weights.
        ignore: patterns of layers to copy as they are.
        choices: pattern -> another scheme, or "none", for the layers it matches.
        max_shard_bytes: of one file of weights; None: one file for each of ``source``.
    Raises:
        QuantDockError: the text says what is wrong, why, and what to do.
    """
    planned = plan(
        source,
        target,
        to,
        ignore=ignore,
        choices=choices,
        max_shard_bytes=max_shard_bytes,
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
    max_shard_bytes: int | None = None,
    trust_remote_code: bool = False,
) -> Conversion:
    """Return the conversion that ``convert_checkpoint`` runs, for those who show its progress."""
    return plan_conversion(
        source,
        target,
        to,
        ignore=ignore,
        choices=choices,
        max_shard_bytes=max_shard_bytes,
        find_layers=partial(model_layers, trust_remote_code=trust_remote_code),
    )
