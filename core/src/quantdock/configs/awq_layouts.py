"""Where AWQ stores a weight, in each of AutoAWQ's three layouts. No torch.

========= =============== ===================== ======== ===========================
version   qweight         qzeros                scales   codes of a word
========= =============== ===================== ======== ===========================
gemm      int32 [K, N/8]  int32 [G, N/8]        [G, N]   columns 0 2 4 6 1 3 5 7
gemv      int32 [N, K/8]  int32 [N, W]          [N, 8W]  eight columns in a row
gemv_fast int16 [N/4, K]  -scale * zero [8W, N] [8W, N]  four rows; see awq_codes
========= =============== ===================== ======== ===========================

W words have room for the G groups, and for more where a kernel wants to read several at once.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from quantdock.configs.header_check import HeaderCheck, Stored, group_words
from quantdock.formats import QuantSpec
from quantdock.methods.slot import Slot

BITS = (4,)
PER_WORD = 8  # codes of 4 bits in 32
_SCALE_DTYPES = ("float16", "bfloat16", "float32")
# Stands for words that are not stored. Decoding tells it by its dtype, which is a float.
_NO_WORDS = 0.0
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AWQLayout:
    """One layout: from the shape of qweight to [N, K], and from [N, K] to all shapes.

    Attributes:
        words: dtype of qweight. zeros: dtypes of qzeros.
        matrix: shape of qweight -> (N, K).
        shapes: (N, K, number of groups, columns of a group) -> shapes of qweight, qzeros, scales.
    """

    codes: ClassVar[str] = "qweight"

    version: str
    words: str
    zeros: tuple[str, ...]
    matrix: Callable[[int, int], Shape]
    shapes: Callable[[int, int, int, int], tuple[Shape, Shape, Shape]]

    def shape(self, spec: QuantSpec, stored: Stored) -> Shape:
        """Return (N, K) as qweight shows it."""
        words = stored["qweight"].shape if "qweight" in stored else ()
        return self.matrix(*words) if len(words) == 2 else ()

    def slots(
        self, spec: QuantSpec, n: int, k: int, names: Container[str] | None
    ) -> tuple[Slot, ...]:
        """Return the tensors of a weight [n, k]; a symmetric one may lack words of zero points."""
        _, groups = spec.grid(n, k)
        codes, zeros, scales = self.shapes(n, k, groups, spec.cols or k)
        slots = (
            Slot(name="qweight", shapes=(codes,), dtypes=(self.words,)),
            Slot(name="scales", shapes=(scales,), dtypes=_SCALE_DTYPES),
        )
        may_lack = not spec.zero and self.zeros == ("int32",)
        if may_lack and names is not None and "qzeros" not in names:
            return slots
        default = _NO_WORDS if may_lack else None
        return (*slots, Slot(name="qzeros", shapes=(zeros,), dtypes=self.zeros, default=default))


def padded_groups(groups: int, size: int) -> int:
    """Return the length of the rows in which gemv's kernels read scales: a multiple of 8.

    A kernel reads as many scales at once as 128 columns have.

    >>> padded_groups(4, 64), padded_groups(8, 128), padded_groups(9, 128)
    (16, 8, 16)
    """
    multiple = PER_WORD * max(1, 128 // size)
    return -(-groups // multiple) * multiple


def _gemm(n: int, k: int, groups: int, size: int) -> tuple[Shape, Shape, Shape]:
    return (k, n // PER_WORD), (groups, n // PER_WORD), (groups, n)


def _gemv(n: int, k: int, groups: int, size: int) -> tuple[Shape, Shape, Shape]:
    row = padded_groups(groups, size)
    return (n, k // PER_WORD), (n, row // PER_WORD), (n, row)


def _gemv_fast(n: int, k: int, groups: int, size: int) -> tuple[Shape, Shape, Shape]:
    row = padded_groups(groups, size)
    return (n // 4, k), (row, n), (row, n)


LAYOUTS: Mapping[str, AWQLayout] = MappingProxyType(
    {
        layout.version: layout
        for layout in (
            AWQLayout(
                version="gemm",
                words="int32",
                zeros=("int32",),
                matrix=lambda rows, columns: (columns * PER_WORD, rows),
                shapes=_gemm,
            ),
            AWQLayout(
                version="gemv",
                words="int32",
                zeros=("int32",),
                matrix=lambda rows, columns: (rows, columns * PER_WORD),
                shapes=_gemv,
            ),
            AWQLayout(
                version="gemv_fast",
                words="int16",
                zeros=_SCALE_DTYPES,
                matrix=lambda rows, columns: (rows * 4, columns),
                shapes=_gemv_fast,
            ),
        )
    }
)
CHECKS: Mapping[str, HeaderCheck] = MappingProxyType(
    {
        version: HeaderCheck(
            layout=layout,
            bits=BITS,
            words=group_words,
            others={f"version = {o!r}": LAYOUTS[o] for o in LAYOUTS if o != version},
        )
        for version, layout in LAYOUTS.items()
    }
)
