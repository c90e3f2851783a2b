"""The layout of gpt-oss: experts in MXFP4, all of a layer in ``_blocks`` and ``_scales``.

Linear layers stay as they are. Files keep plain experts as [experts, K, N] and codes as
[experts, N, K / 32, 16].
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quantdock.checkpoint import Checkpoint, TensorEntry
from quantdock.configs.mxfp4 import BLOCKS, SCALES, Mxfp4Config
from quantdock.convert.chosen import plain_names
from quantdock.convert.dialect import Dialect, as_spec_says
from quantdock.convert.integers import group_misfits
from quantdock.convert.part import Part, copy
from quantdock.convert.request import Request
from quantdock.convert.work import Work
from quantdock.errors import ConfigError, NothingQuantizedError, few
from quantdock.loading.reader import read_tensor
from quantdock.numerics import CanonicalWeight, pack_expert_blocks, quantize_weight
from quantdock.numerics.expert_blocks import GROUP_BYTES
from quantdock.plan.stored_layers import StoredLayer, stored_model
from quantdock.schemes import Scheme, StoredTensor
from quantdock.schemes.shorthands import SHORTHANDS

METHOD = "mxfp4"
_SCHEME = SHORTHANDS[METHOD][0]
_GROUP = 2 * GROUP_BYTES  # columns, two codes a byte
# A weight of one expert, of those that are stacked.
_EXPERT = re.compile(r"(?P<module>.+\.experts)\.\d+\.(?P<weight>gate_up_proj|down_proj)")
_STACKS = re.compile(r".+\.experts\.(gate_up_proj|down_proj)")


def _make_block(layers: Mapping[str, Scheme], plain: Sequence[str]) -> dict[str, Any]:
    return {"quant_method": METHOD, "modules_to_not_convert": list(plain)}


def _describe(scheme: Scheme, n: int, k: int, scale_dtype: str) -> dict[str, StoredTensor]:
    groups = k // _GROUP
    return {
        BLOCKS: StoredTensor(dtype="uint8", shape=(n, groups, GROUP_BYTES)),
        SCALES: StoredTensor(dtype="uint8", shape=(n, groups)),
    }


def _encode(scheme: Scheme, weight: CanonicalWeight, scale_dtype: str) -> dict[str, Tensor]:
    (segment,) = weight.segments
    blocks, scales = pack_expert_blocks(segment.codes, segment.scale)
    return {BLOCKS: blocks, SCALES: scales}


def _misfits(scheme: Scheme, n: int, k: int) -> Iterator[str]:
    yield from group_misfits(scheme.weight, k)


def _strangers(layers: Mapping[str, Scheme]) -> Iterator[str]:
    others = [prefix for prefix in layers if not _EXPERT.fullmatch(prefix)]
    if others:
        yield f"{METHOD} files hold gate_up_proj and down_proj of experts, not {few(others, 1)}"


def stack_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``tensors`` with those of the experts of a layer as one, named as files name it.

    >>> stack_experts({f"a.experts.{e}.down_proj.weight_scales": torch.ones(2) for e in range(3)})[
    ...     "a.experts.down_proj_scales"
    ... ].shape
    torch.Size([3, 2])
    """
    stacks: dict[str, list[Tensor]] = {}
    rest: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        prefix, _, part = name.rpartition(".")
        found = _EXPERT.fullmatch(prefix)
        if found is None:
            rest[name] = tensor
        else:
            stacks.setdefault(_joined(found["module"], found["weight"], part), []).append(tensor)
    return rest | {name: torch.stack(parts) for name, parts in stacks.items()}


def _joined(module: str, weight: str, part: str) -> str:
    return f"{module}.{weight}{part.removeprefix('weight')}"


EXPERT_BLOCKS = Dialect(
    name=METHOD,
    reader=Mxfp4Config,
    make_block=_make_block,
    describe=_describe,
    encode=_encode,
    scale_dtype=as_spec_says,
    misfits=_misfits,
    strangers=_strangers,
    collect=stack_experts,
)


def stacks_of(checkpoint: Checkpoint) -> tuple[StoredLayer, ...]:
    """Return the plain weights of a checkpoint that each hold all experts of a layer."""
    return tuple(
        layer
        for layer in stored_model(checkpoint.tensors).layers
        if len(layer.layout.weight_shape) == 3 and _STACKS.fullmatch(layer.facts.prefix)
    )


def quantize_stacks(checkpoint: Checkpoint, request: Request) -> Work:
    """Return the work that writes the experts of a model like gpt-oss as such files have them.

    Raises:
        NothingQuantizedError: all of them are ignored.
        ConfigError: a choice is asked for, or K is no multiple of 32.
    """
    if request.choices:
        raise ConfigError(
            "--choose has no place in the files of gpt-oss.",
            why=["their experts are in MXFP4, and all else is plain"],
            todo="Leave it out.",
            field="choices",
        )
    config = request.deciding()
    stacks = {layer.facts.prefix: layer for layer in stacks_of(checkpoint)}
    quantized = {p: _SCHEME for p, s in stacks.items() if config.scheme_for(s.facts).scheme}
    if not quantized:
        raise NothingQuantizedError(
            f"{request.to} was asked for, and no layer of {checkpoint.folder} would be quantized.",
            why=["all of them are ignored"],
            todo="Change --ignore.",
        )
    _require_groups(stacks, quantized)
    facts = (layer.facts for layer in stored_model(checkpoint.tensors).layers)
    plain = plain_names(((f.kind, f.prefix) for f in facts if f.prefix not in quantized), ())
    return Work(
        parts=tuple(_parts(checkpoint, quantized)),
        config={**checkpoint.config, "quantization_config": _make_block({}, plain)},
        num_layers=len(quantized),
        notes=("written as gpt-oss has it: experts in MXFP4, linear layers as they are",),
        warnings=(
            *checkpoint.warnings,
            *(f"{entry} matches no layer" for entry in config.unmatched()),
        ),
    )


def _require_groups(stacks: Mapping[str, StoredLayer], quantized: Mapping[str, Scheme]) -> None:
    wrong = [p for p in quantized if stacks[p].layout.weight_shape[1] % _GROUP]
    if wrong:
        raise ConfigError(
            f"The experts of {few(wrong)} do not fit groups of {_GROUP}.",
            why=[f"K={stacks[wrong[0]].layout.weight_shape[1]}"],
            todo=f"Leave them as they are: --ignore '{wrong[0]}'.",
            names=tuple(wrong),
        )


def _parts(checkpoint: Checkpoint, quantized: Mapping[str, Scheme]) -> Iterator[Part]:
    for name, entry in checkpoint.tensors.items():
        prefix = name.removesuffix(".weight")
        yield _quantize(entry, prefix) if prefix in quantized else copy(entry)


def _quantize(entry: TensorEntry, prefix: str) -> Part:
    experts, k, n = entry.shape
    described = _describe(_SCHEME, n, k, "")
    names = {part: f"{prefix}{part.removeprefix('weight')}" for part in described}
    return Part(
        outputs={
            names[part]: StoredTensor(dtype=tensor.dtype, shape=(experts, *tensor.shape))
            for part, tensor in described.items()
        },
        file=entry.file,
        num_bytes=entry.num_bytes,
        make=partial(_quantized, entry, names),
    )


def _quantized(entry: TensorEntry, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Return blocks and scales of all experts; memory holds one of them in f32."""
    made = [
        _encode(_SCHEME, quantize_weight(expert.t().contiguous(), _SCHEME.weight), "")
        for expert in read_tensor(entry)
    ]
    return {name: torch.stack([own[part] for own in made]) for part, name in names.items()}
