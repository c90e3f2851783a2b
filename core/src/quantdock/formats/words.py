"""How many 32-bit words hold packed codes; how they lie in them is ``numerics.packing``.

>>> num_words(128, 3), num_words(128, 3, dense=False)
(12, 13)
"""

from __future__ import annotations

WORD_BITS = 32


def num_words(count: int, bits: int, *, dense: bool = True) -> int:
    """Return how many words hold ``count`` codes: one stream of bits, or each word on its own."""
    return -(-count * bits // WORD_BITS) if dense else -(-count // (WORD_BITS // bits))
