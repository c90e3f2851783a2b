"""Planning: whether an input is to be quantized, moved or decoded, and the work that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quantdock.checkpoint import Checkpoint, QuantizationBlock, find_quantization
from quantdock.checkpoint.quantization_tensors import refuse_without_block
from quantdock.configs.online import NONE
from quantdock.convert.choice import able_to_hold
from quantdock.convert.chosen import choose_layers
from quantdock.convert.coded import CodedModel
from quantdock.convert.decoding import decode_checkpoint, plain_dtype
from quantdock.convert.goals import GOALS
from quantdock.convert.moving import move_checkpoint
from quantdock.convert.part import quantizing_parts
from quantdock.convert.request import Request
from quantdock.convert.work import Work
from quantdock.errors import MismatchError
from quantdock.formats import ELEMENTS
from quantdock.schemes import LayerFacts

# Returns the layers of a model by asking its classes; None where nothing but names is known.
FindLayers = Callable[[Checkpoint], Sequence[LayerFacts] | None]


def plan_work(checkpoint: Checkpoint, request: Request, find_layers: FindLayers) -> Work:
    """Return what ``request`` makes of a checkpoint.

    Raises:
        MismatchError: it is quantized and cannot be moved as it is, or is not and was to be
            decoded.
        QuantDockError: a layer cannot be converted, or none would be.
    """
    block = find_quantization(checkpoint.config, checkpoint.folder)
    if block is None:
        refuse_without_block(checkpoint.tensors)
        return _from_plain(checkpoint, request, find_layers)
    if request.to == NONE:
        return decode_checkpoint(checkpoint, block)
    _refuse_requantizing(checkpoint, block, request)
    return move_checkpoint(checkpoint, block, request.dialect)


def _from_plain(checkpoint: Checkpoint, request: Request, find_layers: FindLayers) -> Work:
    if request.to == NONE:
        raise MismatchError(
            f"{checkpoint.folder} is not quantized, so there is nothing to decode.",
            why=["neither config.json nor a side file says how it would be"],
            todo="Use it as it is, or name a scheme: --to fp8_per_channel.",
        )
    chosen = choose_layers(checkpoint, request, find_layers(checkpoint))
    dialect = request.dialect.for_layers(chosen.quantized)
    made = dialect.make_block(chosen.quantized, chosen.plain)
    notes = [*chosen.notes, f"written as {dialect.name}"]
    words = dict.fromkeys((request.to, *request.choices.values()))
    notes += [note for word in words if word != NONE and (note := GOALS[word].note)]
    if any(not ELEMENTS[s.weight.element].is_float for s in chosen.quantized.values()):
        notes.append("integers are rounded to nearest: no data was used, nothing is calibrated")
    return Work(
        parts=tuple(quantizing_parts(checkpoint, chosen, dialect, plain_dtype(checkpoint.config))),
        config={**checkpoint.config, "quantization_config": made},
        num_layers=len(chosen.quantized),
        notes=tuple(notes),
        warnings=(*checkpoint.warnings, *chosen.warnings),
    )


def _refuse_requantizing(
    checkpoint: Checkpoint, block: QuantizationBlock, request: Request
) -> None:
    """Raise where something else is asked than the same codes in another dialect."""
    said = f"{checkpoint.folder} is quantized already: {block.source} says {block.method}."
    if request.to != request.dialect.name:
        model = CodedModel(checkpoint, block)
        schemes = {layer.prefix: layer.scheme for layer in model.layers}
        able = able_to_hold(schemes, but=model.method)
        move = f"Or move its codes as they are: --to {' or '.join(able)}. " if able else ""
        raise MismatchError(
            said,
            why=["quantizing twice adds the errors of both"],
            todo=f"Convert its 16-bit original. {move}Or decode this one first, with --to none.",
        )
    if request.ignore or request.choices or any(request.integers.given()):
        raise MismatchError(
            said,
            why=["its codes move as they are; --ignore, --choose and options would change them"],
            todo="Leave the options out, or decode it first, with --to none.",
        )
