"""The tensors of an fp8 weight in a file: its codes, its scale, the scale of its input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from quantdock.configs.stored import INPUT_SCALES, WEIGHT_SCALES
from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.methods.slot import Slot
from quantdock.schemes import LayerFacts, Scheme

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.numerics.canonical import CanonicalWeight

FLOAT_SCALES = ("float32", "bfloat16", "float16")
ONE_VALUE: tuple[tuple[int, ...], ...] = ((1,), (), (1, 1))


def fp8_slots(
    scheme: Scheme, n: int, k: int, facts: LayerFacts, scale_dtypes: tuple[str, ...]
) -> tuple[Slot, ...]:
    """Return the slots of one shard [n, k].

    A static activation needs its scale. Beside a dynamic one a stored scale is taken and not used.
    """
    spec = scheme.weight
    weight = Slot(name="weight", shapes=((n, k),), dtypes=(ELEMENTS[spec.element].storage, "uint8"))
    scale = scale_slot(spec, n, k, scale_dtypes)
    if not scheme.is_static and not may_store(facts, INPUT_SCALES):
        return weight, scale
    return weight, scale, input_scale_slot(None if scheme.is_static else 1.0)


def scale_slot(spec: QuantSpec, n: int, k: int, dtypes: tuple[str, ...] = FLOAT_SCALES) -> Slot:
    """Return the slot of a weight's scale, a grid of tiles in any shape of its size."""
    name = scale_name(spec)
    return Slot(
        name=name,
        shapes=scale_shapes(spec, n, k),
        dtypes=dtypes,
        aliases=tuple(alias for alias in WEIGHT_SCALES if alias != name),
        row_tile=spec.rows,
        col_tile=spec.cols,
    )


def input_scale_slot(default: float | None = None) -> Slot:
    """Return the slot of the one scale of a static activation."""
    return Slot(
        name=INPUT_SCALES[0],
        shapes=ONE_VALUE,
        dtypes=FLOAT_SCALES,
        aliases=INPUT_SCALES[1:],
        default=default,
        row_tile=None,
        col_tile=None,
    )


def bound_slot(name: str, default: float) -> Slot:
    """Return the slot of one number that a file may store and that has a usual value."""
    return Slot(
        name=name,
        shapes=ONE_VALUE,
        dtypes=FLOAT_SCALES,
        default=default,
        row_tile=None,
        col_tile=None,
    )


def decode_fp8(scheme: Scheme, stored: Sequence[Mapping[str, Tensor]]) -> CanonicalWeight:
    """Return the canonical weight, one segment a shard; no value changes.

    Shapes:
        weight: fp8 or raw bytes [n, K]. Its scale: any shape of ``spec.grid(n, K)`` elements.
    """
    from quantdock.numerics.canonical import CanonicalWeight, Segment, join
    from quantdock.numerics.dtypes import torch_dtype
    from quantdock.numerics.scales import decode_scale

    spec = scheme.weight
    parts = []
    for tensors in stored:
        codes = tensors["weight"].view(torch_dtype(ELEMENTS[spec.element].storage))
        n, k = codes.shape
        scale = decode_scale(tensors[scale_name(spec)]).reshape(spec.grid(n, k))
        parts.append(
            CanonicalWeight(
                segments=(Segment(spec=spec, codes=codes, scale=scale),),
                input_scale=decode_scale(tensors[INPUT_SCALES[0]]).reshape(1)
                if scheme.is_static
                else None,
            )
        )
    return join(parts)


def scale_name(spec: QuantSpec) -> str:
    """Return what files usually call the scale: blocks have the name DeepSeek-V3 gave it."""
    return "weight_scale" if spec.cols is None else "weight_scale_inv"


def scale_shapes(spec: QuantSpec, n: int, k: int) -> tuple[tuple[int, ...], ...]:
    """Return every shape that has been seen for the scale, ``spec.grid`` first."""
    rows, cols = spec.grid(n, k)
    shapes: list[tuple[int, ...]] = [(rows, cols), (rows, 1, cols, 1)]
    if cols == 1:
        shapes.append((rows,))
    if rows == 1:
        shapes.append((cols,))
    if rows == cols == 1:
        shapes.append(())
    return tuple(dict.fromkeys(shapes))


def may_store(facts: LayerFacts, names: Sequence[str]) -> bool:
    """Return whether the file stores one of ``names`` for the layer, or nobody has looked."""
    if facts.stored is None:
        return True
    return any(key.rpartition(".")[2] in names for key in facts.stored)
