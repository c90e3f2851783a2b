"""GPTQ's words into codes, scales, zero points and groups, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from quantdock.configs.contradictions import Contradictions
from quantdock.configs.gptq_tensors import BITS, V1, ZeroStorage
from quantdock.configs.group_codes import (
    bits_of,
    middle,
    only_segment,
    require_middle,
    with_sign,
    without_sign,
    zeros_without_sign,
)
from quantdock.errors import LoadError
from quantdock.formats import WORD_BITS, QuantSpec, num_words
from quantdock.numerics.canonical import CanonicalWeight, Segment
from quantdock.numerics.packing import pack_bits, unpack_bits
from quantdock.numerics.scales import decode_scale
from quantdock.schemes import LayerFacts


def decode(
    spec: QuantSpec,
    stored: Sequence[Mapping[str, Tensor]],
    facts: LayerFacts,
    storage: ZeroStorage,
    contradictions: Contradictions,
) -> CanonicalWeight:
    """Return the canonical weight of a layer's shards; see ``decode_gptq``."""
    names = facts.shards or (facts.prefix,) * len(stored)
    shards = list(zip(names, stored, strict=True))
    indices = [_group_index(name, tensors, spec) for name, tensors in shards]
    in_order = all(torch.equal(index, _in_a_row(index, spec)) for index in indices)
    if spec.act_order and facts.kind == "experts":
        in_order = False  # one kernel runs all experts, so all of them have an index
    if not in_order and not spec.act_order:
        contradictions.add(facts.prefix, "stored in act-order (g_idx), though desc_act = False")
    spec = replace(spec, act_order=not in_order)
    segments = []
    for (name, tensors), index in zip(shards, indices, strict=True):
        words, k = tensors["qweight"].t().contiguous(), index.numel()
        zeros = _zeros(name, tensors, spec, storage, contradictions)
        segments.append(
            Segment(
                spec=spec,
                codes=with_sign(unpack_bits(words, bits=bits_of(spec), count=k), spec),
                scale=decode_scale(tensors["scales"].t()).contiguous(),
                zero=zeros.to(torch.int32) if spec.zero else None,
                group_index=None if in_order else index,
            )
        )
    return CanonicalWeight(segments=tuple(segments))


def encode_gptq(
    weight: CanonicalWeight,
    storage: ZeroStorage = V1,
    scale_dtype: torch.dtype = torch.float16,
) -> dict[str, Tensor]:
    """Return the tensors that a GPTQ file stores for ``weight``: the inverse of decoding.

    Raises:
        FormatError: GPTQ cannot store it: several segments, other elements or tiles.
    """
    segment = only_segment(weight, "gptq", BITS)
    bits = bits_of(segment.spec)
    zeros = zeros_without_sign(segment).t().contiguous()
    if not storage.v2 and not storage.borrows(bits):
        zeros = (zeros - 1) & ((1 << bits) - 1)
    qzeros = pack_bits(zeros, bits=bits)
    if storage.borrows(bits):
        qzeros = qzeros - _ones(zeros, bits)
    index = segment.group_index
    if index is None:
        index = _in_a_row(zeros.new_empty(weight.shape[1], dtype=torch.int32), segment.spec)
    return {
        "qweight": pack_bits(without_sign(segment), bits=bits).t().contiguous(),
        "qzeros": qzeros,
        "scales": segment.scale.t().contiguous().to(scale_dtype),
        "g_idx": index,
    }


def _group_index(name: str, tensors: Mapping[str, Tensor], spec: QuantSpec) -> Tensor:
    """Return the group of each column, int32 [K]; in a row where no index is stored.

    Raises:
        LoadError: a column names a group that has no scale.
    """
    index, groups = tensors.get("g_idx"), tensors["scales"].shape[0]
    if index is None or index.is_floating_point():  # a default stands for what is not stored
        words, _ = tensors["qweight"].shape
        k = groups * (spec.cols or 0)
        if spec.cols is None or num_words(k, bits_of(spec)) != words:
            k = words * WORD_BITS // bits_of(spec)
        return _in_a_row(tensors["qweight"].new_empty(k), spec)
    wrong = (index < 0) | (index >= groups)
    if bool(wrong.any()):
        column = int(wrong.nonzero()[0])
        raise LoadError(
            f"{name}.g_idx: {int(wrong.sum())} of {index.numel()} columns are in groups that "
            f"do not exist.",
            why=[f"column {column} is in group {int(index[column])}, groups are 0 to {groups - 1}"],
            todo="The file is damaged; download it again.",
            names=(f"{name}.g_idx",),
        )
    return index


def _in_a_row(index: Tensor, spec: QuantSpec) -> Tensor:
    """Return the groups of as many columns as ``index`` has, where each follows the one before."""
    k = index.numel()
    columns = torch.arange(k, dtype=torch.int32, device=index.device)
    return columns // (spec.cols or max(k, 1))


def _zeros(
    name: str,
    tensors: Mapping[str, Tensor],
    spec: QuantSpec,
    storage: ZeroStorage,
    contradictions: Contradictions,
) -> Tensor:
    """Return the zero points as meant, uint8 [N, groups]; all the middle where symmetric.

    Raises:
        LoadError: a symmetric weight has others.
    """
    words, n, bits = tensors["qzeros"], tensors["scales"].shape[1], bits_of(spec)
    if storage.borrows(bits):
        words = words + _ones(tensors["scales"], bits)
    zeros = unpack_bits(words, bits=bits, count=n)
    if not storage.v2 and not storage.borrows(bits):
        zeros = (zeros + 1) & ((1 << bits) - 1)
    zeros = zeros.t().contiguous()
    mislabelled = middle(spec) + (-1 if storage.v2 else 1)
    if not spec.zero and bool((zeros == mislabelled).all()):
        has = "gptq" if storage.v2 else "gptq_v2"
        what = f"stored with zero points as {has} has them, though {storage.stated}"
        contradictions.add(name, what)
        zeros.fill_(middle(spec))
    if not spec.zero:
        require_middle(name, zeros, spec, "sym = True")
    return zeros


def _ones(like: Tensor, bits: int) -> Tensor:
    """Return words whose codes are all 1, for rows as long as those of ``like``."""
    ones = torch.ones(like.shape[-1], dtype=torch.uint8, device=like.device)
    return pack_bits(ones, bits=bits)
