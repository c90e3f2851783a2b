"""What a conversion will write: every tensor, and the config.json that says how to read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantdock.checkpoint import Checkpoint, find_quantization
from quantdock.checkpoint.quantization_tensors import refuse_without_block
from quantdock.configs.online import NONE
from quantdock.convert.chosen import choose_layers
from quantdock.convert.decoding import BLOCK_FILES, decode_checkpoint, without_block
from quantdock.convert.part import Part, quantizing_parts
from quantdock.convert.request import GOALS, Request
from quantdock.errors import MismatchError
from quantdock.schemes import LayerFacts

# Returns the layers of a model by asking its classes; None where nothing but names is known.
FindLayers = Callable[[Checkpoint], Sequence[LayerFacts] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the output will hold: its tensors, its config.json, and what to say of them."""

    parts: tuple[Part, ...]
    config: Mapping[str, Any]
    num_layers: int  # that are quantized, or decoded
    dropped: frozenset[str] = frozenset()  # side files that would be wrong in the output
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def plan_work(checkpoint: Checkpoint, request: Request, find_layers: FindLayers) -> Work:
    """Return what ``request`` makes of a checkpoint.

    Raises:
        MismatchError: it is quantized and was to be quantized, or is not and was to be decoded.
        QuantDockError: a layer cannot be converted, or none would be.
    """
    if request.to == NONE:
        return _decode(checkpoint)
    return _quantize(checkpoint, request, find_layers)


def _quantize(
    checkpoint: Checkpoint,
    request: Request,
    find_layers: FindLayers,
) -> Work:
    block = find_quantization(checkpoint.config, checkpoint.folder)
    if block is not None:
        raise MismatchError(
            f"{checkpoint.folder} is quantized already: {block.source} says {block.method}.",
            why=["quantizing twice adds the errors of both"],
            todo="Convert its 16-bit original. Or decode this one first, with --to none.",
        )
    refuse_without_block(checkpoint.tensors)
    chosen = choose_layers(checkpoint, request, find_layers(checkpoint))
    dialect = GOALS[request.to].dialect
    block_to_write = dialect.make_block(chosen.quantized, chosen.plain)
    return Work(
        parts=tuple(quantizing_parts(checkpoint, chosen, dialect)),
        config={**checkpoint.config, "quantization_config": block_to_write},
        num_layers=len(chosen.quantized),
        notes=(*chosen.notes, f"written as {dialect.name}"),
        warnings=(*checkpoint.warnings, *chosen.warnings),
    )


def _decode(checkpoint: Checkpoint) -> Work:
    block = find_quantization(checkpoint.config, checkpoint.folder)
    if block is None:
        refuse_without_block(checkpoint.tensors)
        raise MismatchError(
            f"{checkpoint.folder} is not quantized, so there is nothing to decode.",
            why=["neither config.json nor a side file says how it would be"],
            todo="Use it as it is, or name a scheme: --to fp8_per_channel.",
        )
    decoded = decode_checkpoint(checkpoint, block)
    return Work(
        parts=decoded.parts,
        config=without_block(checkpoint.config),
        num_layers=decoded.num_layers,
        dropped=BLOCK_FILES,
        notes=decoded.notes,
        warnings=(*block.warnings, *checkpoint.warnings),
    )
