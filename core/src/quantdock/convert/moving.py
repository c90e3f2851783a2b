"""Moving: a quantized checkpoint in another dialect, its codes, scales and zero points as they are.

Nothing is rounded: what a layer decodes to is the same before and after, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from quantdock.checkpoint import Checkpoint, QuantizationBlock
from quantdock.convert.choice import able_to_hold, word_for
from quantdock.convert.chosen import plain_names
from quantdock.convert.coded import CodedLayer, CodedModel
from quantdock.convert.decoding import BLOCK_FILES, without_block
from quantdock.convert.dialect import INPUT_SCALE, Dialect, as_spec_says
from quantdock.convert.features import lacking
from quantdock.convert.fit import require_fit
from quantdock.convert.levels import require_divisors
from quantdock.convert.work import Work
from quantdock.errors import LoadError, MismatchError, few
from quantdock.plan.grouping import collapse_all
from quantdock.schemes import Scheme, StoredTensor

_SCALES = ("scale", "scales", "scale_inv")  # how the name of a weight's scale ends


def move_checkpoint(checkpoint: Checkpoint, block: QuantizationBlock, dialect: Dialect) -> Work:
    """Return the work that writes every quantized layer in ``dialect``, values unchanged.

    Raises:
        MismatchError: it is in that dialect, or has layers for which the dialect has no words.
        ConfigError: a layer does not fit the dialect's packing.
        QuantDockError: the input cannot be read.
    """
    model = CodedModel(checkpoint, block)
    schemes = {layer.prefix: layer.scheme for layer in model.layers}
    if model.method == dialect.name:
        raise MismatchError(
            f"{checkpoint.folder} is in {dialect.name} already.",
            why=[f"{block.source} says {block.method}"],
            todo="Use it as it is, or decode it with --to none and quantize the result.",
        )
    refuse_stacked(model.layers)
    dialect = dialect.for_layers(schemes)
    _require_words(dialect, schemes, model.method)
    shapes = {layer.prefix: (layer.n, layer.k) for layer in model.layers}
    require_fit(dialect, schemes, shapes)
    require_divisors(model, dialect)

    def describe(layer: CodedLayer) -> dict[str, StoredTensor]:
        return dialect.describe(layer.scheme, layer.n, layer.k, _scale_dtype(layer))

    def make(layer: CodedLayer) -> dict[str, Tensor]:
        return dialect.encode(layer.scheme, model.read(layer), _scale_dtype(layer))

    facts = ((layer.facts.kind, layer.facts.prefix) for layer in model.all_layers)
    made = dialect.make_block(schemes, plain_names(facts, schemes))
    return Work(
        parts=model.rewritten(describe, make),
        config={**without_block(checkpoint.config), "quantization_config": made},
        num_layers=len(schemes),
        dropped=BLOCK_FILES,
        notes=(*model.notes(), f"moved from {model.method} to {dialect.name}, nothing rounded"),
        warnings=(*block.warnings, *checkpoint.warnings, *dialect.cautions(schemes)),
    )


def refuse_stacked(layers: Sequence[CodedLayer]) -> None:
    """Raise where a tensor holds all experts of a module.

    Raises:
        MismatchError: naming them.
    """
    stacked = [layer.prefix for layer in layers if layer.experts]
    if stacked:
        raise MismatchError(
            f"{few(collapse_all(stacked))}: these tensors hold all experts of a layer.",
            why=["codes move layer by layer, and no other dialect has a place for such a tensor"],
            todo="Decode the checkpoint with --to none, or use it as it is.",
        )


def _scale_dtype(layer: CodedLayer) -> str:
    """Return the dtype in which the input stores the scale of a layer's weight, as its spec has it.

    Scales that are floats may be of any dtype; others have one.
    """
    if layer.scheme.weight.scale != "f32":
        return as_spec_says(layer.scheme.weight, "")
    found = [
        entry.dtype
        for name, entry in layer.stored.items()
        if name.endswith(_SCALES) and name != INPUT_SCALE
    ]
    if len(found) != 1:
        raise LoadError(
            f"{layer.prefix} has {len(found)} scales for its weight.",
            why=[f"it stores {', '.join(layer.stored)}"],
            todo="Decode it with --to none, and quantize the result.",
        )
    return found[0]


def _require_words(dialect: Dialect, schemes: Mapping[str, Scheme], method: str) -> None:
    why = dialect.why_not(schemes)
    if why:
        able = able_to_hold(schemes, but=method)
        other = (
            f"Name a dialect that can: --to {' or '.join(able)}. Or decode" if able else "Decode"
        )
        raise MismatchError(
            f"{dialect.name} cannot hold the codes of this checkpoint as they are.",
            why=[*why, *dict.fromkeys(lacking([dialect], schemes))],
            todo=f"{other} it with --to none, and quantize the result with "
            f"--to {word_for(schemes, dialect)}.",
        )
