"""Second scales of an input, looked at before they are written where files store divisors."""

from __future__ import annotations

from quantdock.configs.packed_floats import PackedFloats
from quantdock.convert.coded import CodedLayer, CodedModel
from quantdock.convert.dialect import Dialect
from quantdock.convert.packed_form import divisor_of
from quantdock.errors import MismatchError, SaveError
from quantdock.numerics import decode_scale


def require_divisors(model: CodedModel, dialect: Dialect) -> None:
    """Raise where a second scale of ``model`` multiplies, and is no reciprocal of an f32 number.

    Raises:
        MismatchError: naming the first of such layers.
    """
    for layer in model.layers if dialect.divides else ():
        for name in _multipliers(model, layer):
            try:
                divisor_of(decode_scale(model.read_stored(layer, name)))
            except SaveError as error:
                raise MismatchError(
                    f"{layer.prefix}.{name} has no place in {dialect.name}: {error.what}",
                    why=error.why,
                    todo=error.todo,
                ) from error


def _multipliers(model: CodedModel, layer: CodedLayer) -> tuple[str, ...]:
    """Return the second scales of a layer that are stored as they multiply."""
    reader_of = getattr(model.config, "reader_of", None)
    reader = reader_of(layer.facts) if reader_of is not None else None
    if not isinstance(reader, PackedFloats) or reader.names.divides:
        return ()
    wanted = (reader.names.second, reader.names.input_scale[0])
    return tuple(name for name in wanted if name in layer.stored)
