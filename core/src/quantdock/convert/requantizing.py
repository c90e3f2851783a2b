"""Requantizing: layers in floats as fp8 of other tiles or scales; what changes is counted.

So MXFP8 becomes fp8 in blocks and back, and experts in fp4 become fp8.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from quantdock.checkpoint import Checkpoint, QuantizationBlock
from quantdock.convert.chosen import plain_names, ragged
from quantdock.convert.coded import CodedLayer, CodedModel
from quantdock.convert.decoding import BLOCK_FILES, without_block
from quantdock.convert.fit import require_fit
from quantdock.convert.goals import GOALS
from quantdock.convert.moving import refuse_stacked
from quantdock.convert.request import Request
from quantdock.convert.tally import Tally
from quantdock.convert.work import Work
from quantdock.errors import MismatchError, few
from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.numerics import compare_weights, requantize
from quantdock.numerics.canonical import CanonicalWeight
from quantdock.plan.grouping import collapse_all
from quantdock.schemes import Scheme, StoredTensor

_BITS = 8


def may_requantize(model: CodedModel, request: Request) -> bool:
    """Return whether all layers are floats and fp8 is asked for, which holds more or as much.

    So does what they are, in another dialect.
    """
    goal = GOALS[request.to].fixed
    if goal is None or not model.layers:
        return False
    specs = {layer.scheme.weight for layer in model.layers}
    is_fp8 = ELEMENTS[goal.weight.element].bits == _BITS
    return specs == {goal.weight} or (
        is_fp8 and all(ELEMENTS[spec.element].is_float for spec in specs)
    )


def requantize_checkpoint(
    checkpoint: Checkpoint, block: QuantizationBlock, model: CodedModel, request: Request
) -> Work:
    """Return the work that writes every quantized layer in the fp8 that ``request`` names.

    Raises:
        MismatchError: it is that already, a tensor holds all experts of a layer, or inputs are
            multiplied first.
    """
    goal, dialect = request.scheme(request.to), request.dialect
    schemes = {layer.prefix: goal for layer in model.layers}
    _refuse(checkpoint, block, model, goal, request)
    refuse_stacked(model.layers)
    shapes = {layer.prefix: (layer.n, layer.k) for layer in model.layers}
    require_fit(dialect, schemes, shapes)
    scale_dtype = dialect.scale_dtype(goal.weight, "")
    tally = Tally(request.to)

    def describe(layer: CodedLayer) -> dict[str, StoredTensor]:
        return dialect.describe(goal, layer.n, layer.k, scale_dtype)

    def make(layer: CodedLayer) -> dict[str, Tensor]:
        before = model.read(replace(layer, scheme=layer.scheme.weight_only()))
        after = _requantized(before, goal.weight, dialect.divides)
        tally.add(layer.prefix, compare_weights(before, after))
        return dialect.encode(goal, after, scale_dtype)

    facts = ((layer.facts.kind, layer.facts.prefix) for layer in model.all_layers)
    made = dialect.make_block(schemes, plain_names(facts, schemes))
    notes = [*model.notes(), f"requantized from {model.method}, written as {dialect.name}"]
    if any(layer.scheme.is_static for layer in model.layers):
        instead = "computes them" if goal.activation else "leaves inputs as they are"
        notes.append(f"static scales of inputs are left out: {request.to} {instead}")
    return Work(
        parts=model.rewritten(describe, make),
        config={**without_block(checkpoint.config), "quantization_config": made},
        num_layers=len(schemes),
        dropped=BLOCK_FILES,
        notes=tuple(notes),
        warnings=(*block.warnings, *checkpoint.warnings, *ragged(schemes, shapes)),
        tally=tally,
    )


def _requantized(weight: CanonicalWeight, new: QuantSpec, divides: bool) -> CanonicalWeight:
    """Return the one segment of ``weight`` in another spec.

    Args:
        divides: second scales are to be reciprocals of f32 numbers.
    """
    (segment,) = weight.segments
    spec, second = segment.spec, segment.second_scale
    if spec == new:
        if second is None or not divides:
            return weight
        nearest = second.reciprocal().reciprocal()
        return replace(weight, segments=(replace(segment, second_scale=nearest),))
    return requantize(weight, new)


def _refuse(
    checkpoint: Checkpoint,
    block: QuantizationBlock,
    model: CodedModel,
    goal: Scheme,
    request: Request,
) -> None:
    is_same = all(layer.scheme == goal for layer in model.layers)
    if is_same and model.method in (request.to, request.dialect.name, request.dialect.reader.name):
        raise MismatchError(
            f"{checkpoint.folder} is in {request.to} already.",
            why=[f"{block.source} says {block.method}, and all layers are {goal}"],
            todo="Use it as it is.",
        )
    multiplied = [layer.prefix for layer in model.layers if layer.scheme.input_multiplier]
    if multiplied:
        raise MismatchError(
            f"{request.to} has no place for the multipliers of inputs.",
            why=[f"{few(collapse_all(multiplied))}: inputs are multiplied, a number a column"],
            todo="Decode the checkpoint with --to none, and quantize the result.",
        )
