"""The tensors of a GPTQ weight in a file, and how its zero points are written.

``qweight`` [ceil(K * bits / 32), N] holds one stream of bits down each column, ``qzeros``
[groups, ceil(N * bits / 32)] one along each row, ``scales`` is [groups, N], ``g_idx`` [K] names
each column's group. The code of a column of the weight and a zero point are unsigned.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantdock.configs.header_check import HeaderCheck, Stored, group_words
from quantdock.formats import ELEMENTS, WORD_BITS, QuantSpec, num_words
from quantdock.methods.slot import Slot
from quantdock.schemes import LayerFacts, Scheme

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.configs.contradictions import Contradictions
    from quantdock.numerics.canonical import CanonicalWeight

BITS = (2, 3, 4, 8)
SCALE_DTYPES = ("float16", "bfloat16", "float32")
# Stands for an index that is not stored. Decoding tells it by its dtype, which is a float.
_NO_INDEX = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroStorage:
    """How a file writes its zero points.

    Attributes:
        v2: as they are meant; otherwise minus one, where 0 wraps to the largest code.
        whole_words: one was subtracted from all codes of a word at once, so that a zero point of 0
            borrowed from its neighbour (GPTQModel, for bits that divide a word); otherwise from
            each on its own.
        stated: where the file says so, for messages.
    """

    v2: bool = False
    whole_words: bool = False
    stated: str = "the file is of version 1"

    def borrows(self, bits: int) -> bool:
        """Return whether the words of codes of ``bits`` bits were written as one number each."""
        return self.whole_words and not self.v2 and WORD_BITS % bits == 0


V1 = ZeroStorage()


class GPTQLayout:
    """GPTQ's tensors, as checks of headers ask for them."""

    codes = "qweight"

    def shape(self, spec: QuantSpec, stored: Stored) -> tuple[int, ...]:
        """Return (N, K): K is as long as the groups, or as the index, or as the words allow."""
        words = stored["qweight"].shape if "qweight" in stored else ()
        if len(words) != 2:
            return ()
        bits = ELEMENTS[spec.element].bits
        index = stored["g_idx"].shape[0] if _is_listed("g_idx", stored) else 0
        groups = stored["scales"].shape[0] if _is_listed("scales", stored) else 0
        for k in (groups * (spec.cols or 0), index):
            if num_words(k, bits) == words[0]:
                return words[1], k
        return words[1], index or words[0] * WORD_BITS // bits

    def slots(
        self, spec: QuantSpec, n: int, k: int, names: Container[str] | None
    ) -> tuple[Slot, ...]:
        """Return the tensors of a weight [n, k]; ``names`` None: nobody has read the headers."""
        bits = ELEMENTS[spec.element].bits
        _, groups = spec.grid(n, k)
        needed = (
            Slot(name="qweight", shapes=((num_words(k, bits), n),), dtypes=("int32",)),
            Slot(name="qzeros", shapes=((groups, num_words(n, bits)),), dtypes=("int32",)),
            Slot(name="scales", shapes=((groups, n),), dtypes=SCALE_DTYPES),
        )
        if names is not None and "g_idx" not in names and not spec.act_order:
            return needed
        default = None if spec.act_order else _NO_INDEX
        return (*needed, Slot(name="g_idx", shapes=((k,),), dtypes=("int32",), default=default))


LAYOUT = GPTQLayout()
CHECK = HeaderCheck(layout=LAYOUT, bits=BITS, words=group_words)


def gptq_slots(scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
    """Return the slots of one shard [n, k]; the index is asked for where it may be stored."""
    return LAYOUT.slots(scheme.weight, n, k, stored_names(facts))


def stored_names(facts: LayerFacts) -> set[str] | None:
    """Return the names of a layer's tensors, its own or its shards'; None if nobody has looked."""
    return None if facts.stored is None else {key.rpartition(".")[2] for key in facts.stored}


def decode_gptq(
    scheme: Scheme,
    stored: Sequence[Mapping[str, Tensor]],
    facts: LayerFacts,
    storage: ZeroStorage,
    contradictions: Contradictions,
) -> CanonicalWeight:
    """Return the canonical weight, one segment a shard; no value changes.

    The stored index decides whether the weight is in act-order, the stored zero points of a
    symmetric file how they are written; what that contradicts is added to ``contradictions``.

    Raises:
        LoadError: an index outside the groups, or a zero point of a symmetric weight that is not
            the middle of its codes.
    """
    from quantdock.configs.gptq_codes import decode

    return decode(scheme.weight, stored, facts, storage, contradictions)


def _is_listed(name: str, stored: Stored) -> bool:
    return name in stored and len(stored[name].shape) > 0
