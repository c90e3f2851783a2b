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
from quantdock.convert.expert_blocks import METHOD, quantize_stacks, stacks_of
from quantdock.convert.goals import GOALS
from quantdock.convert.moving import move_checkpoint
from quantdock.convert.part import quantizing_parts
from quantdock.convert.requantizing import may_requantize, requantize_checkpoint
from quantdock.convert.request import Request
from quantdock.convert.stacked import keeps_experts_turned
from quantdock.convert.work import Work
from quantdock.errors import ConfigError, MismatchError
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
        _refuse_exact(request, "decoding rounds each value to the model's dtype")
        return decode_checkpoint(checkpoint, block)
    if request.to != request.dialect.name:
        return _requantize(checkpoint, block, request)
    _refuse_options(checkpoint, block, request)
    return move_checkpoint(checkpoint, block, request.dialect)


def _from_plain(checkpoint: Checkpoint, request: Request, find_layers: FindLayers) -> Work:
    _refuse_exact(request, "16-bit weights are rounded")
    if request.to == NONE:
        raise MismatchError(
            f"{checkpoint.folder} is not quantized, so there is nothing to decode.",
            why=["neither config.json nor a side file says how it would be"],
            todo="Use it as it is, or name a scheme: --to fp8_per_channel.",
        )
    is_turned = keeps_experts_turned(checkpoint.config)
    if request.to == METHOD and is_turned and stacks_of(checkpoint):
        return quantize_stacks(checkpoint, request)
    chosen = choose_layers(checkpoint, request, find_layers(checkpoint))
    dialect = request.dialect.for_layers(chosen.quantized)
    made = dialect.make_block(chosen.quantized, chosen.plain)
    notes = [*chosen.notes, f"written as {dialect.name}"]
    words = dict.fromkeys((request.to, *request.choices.values()))
    notes += [f"{w}: {note}" for w in words if w != NONE and (note := GOALS[w].note)]
    if any(not ELEMENTS[s.weight.element].is_float for s in chosen.quantized.values()):
        notes.append("integers are rounded to nearest: no data was used, nothing is calibrated")
    return Work(
        parts=tuple(quantizing_parts(checkpoint, chosen, dialect, plain_dtype(checkpoint.config))),
        config={**checkpoint.config, "quantization_config": made},
        num_layers=len(chosen.quantized),
        notes=tuple(notes),
        warnings=(*checkpoint.warnings, *chosen.warnings),
    )


def _requantize(checkpoint: Checkpoint, block: QuantizationBlock, request: Request) -> Work:
    """Return the work that makes fp8 of other floats; all else is refused."""
    model = CodedModel(checkpoint, block)
    if may_requantize(model, request):
        _refuse_options(checkpoint, block, request)
        return requantize_checkpoint(checkpoint, block, model, request)
    schemes = {layer.prefix: layer.scheme for layer in model.layers}
    able = able_to_hold(schemes, but=model.method)
    move = f"Or move its codes as they are: --to {' or '.join(able)}. " if able else ""
    raise MismatchError(
        _quantized_already(checkpoint, block),
        why=["quantizing twice adds the errors of both"],
        todo=f"Convert its 16-bit original. {move}Or decode this one first, with --to none.",
    )


def _refuse_options(checkpoint: Checkpoint, block: QuantizationBlock, request: Request) -> None:
    """Raise where some layers were to be treated otherwise than others."""
    if request.ignore or request.choices or any(request.integers.given()):
        raise MismatchError(
            _quantized_already(checkpoint, block),
            why=["all of it is converted; --ignore, --choose and options would divide it"],
            todo="Leave the options out, or decode it first, with --to none.",
        )


def _refuse_exact(request: Request, why: str) -> None:
    if request.exact:
        raise ConfigError(
            f"--exact is nothing that --to {request.to} can promise of this checkpoint.",
            why=[why],
            todo="Leave it out; it is for a quantized folder that becomes fp8 of another kind.",
            field="exact",
        )


def _quantized_already(checkpoint: Checkpoint, block: QuantizationBlock) -> str:
    return f"{checkpoint.folder} is quantized already: {block.source} says {block.method}."
