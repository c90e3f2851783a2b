"""Part: tensors of the output that are made together, from one tensor or layer of the input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from quantdock.checkpoint import Checkpoint, TensorEntry
from quantdock.convert.chosen import Chosen
from quantdock.convert.dialect import Dialect
from quantdock.convert.rounding import round_weight
from quantdock.convert.siblings import siblings
from quantdock.errors import FormatError
from quantdock.loading.reader import read_tensor
from quantdock.schemes import Scheme, StoredTensor

_WEIGHT = ".weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is written for one tensor or layer of the input.

    Attributes:
        outputs: the tensors, by their whole names.
        file: the input's file that holds the weight.
        num_bytes: read for it.
        make: returns the tensors; None: ``copied`` goes over as it is.
    """

    outputs: Mapping[str, StoredTensor]
    file: Path
    num_bytes: int
    copied: TensorEntry | None = None
    make: Callable[[], Mapping[str, Tensor]] | None = None


def copy(entry: TensorEntry) -> Part:
    """Return the part that is one tensor, bit for bit."""
    return Part(
        outputs={entry.name: entry.stored},
        file=entry.file,
        num_bytes=entry.num_bytes,
        copied=entry,
    )


def quantizing_parts(
    checkpoint: Checkpoint, chosen: Chosen, dialect: Dialect, model_dtype: str
) -> Iterator[Part]:
    """Yield a part for every tensor of a 16-bit checkpoint, in its order."""
    shared = siblings(chosen.quantized)
    for name, entry in checkpoint.tensors.items():
        prefix = name.removesuffix(_WEIGHT)
        scheme = chosen.quantized.get(prefix) if name.endswith(_WEIGHT) else None
        if scheme is None:
            yield copy(entry)
        else:
            scale_dtype = dialect.scale_dtype(scheme.weight, model_dtype)
            beside = [checkpoint.tensors[f"{other}{_WEIGHT}"] for other in shared.get(prefix, ())]
            yield _quantize(entry, prefix, scheme, dialect, scale_dtype, beside)


def _quantize(
    entry: TensorEntry,
    prefix: str,
    scheme: Scheme,
    dialect: Dialect,
    scale_dtype: str,
    beside: Sequence[TensorEntry],
) -> Part:
    """Return the part of one layer; ``beside``: the weights that share its second scale."""
    n, k = entry.shape
    described = dialect.describe(scheme, n, k, scale_dtype)
    return Part(
        outputs={f"{prefix}.{last}": tensor for last, tensor in described.items()},
        file=entry.file,
        num_bytes=entry.num_bytes,
        make=partial(_quantized, entry, prefix, scheme, dialect, scale_dtype, beside),
    )


def _quantized(
    entry: TensorEntry,
    prefix: str,
    scheme: Scheme,
    dialect: Dialect,
    scale_dtype: str,
    beside: Sequence[TensorEntry],
) -> dict[str, Tensor]:
    amax = torch.stack([read_tensor(e).abs().amax() for e in beside]).amax() if beside else None
    try:
        weight = round_weight(
            read_tensor(entry), scheme.weight, scale_dtype, amax=amax, divides=dialect.divides
        )
    except FormatError as error:
        why = (error.what, *error.why)
        raise FormatError(f"{prefix} cannot be quantized.", why=why, todo=error.todo) from error
    made = dialect.encode(scheme, weight, scale_dtype)
    return {f"{prefix}.{last}": tensor for last, tensor in made.items()}
