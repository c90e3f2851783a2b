from __future__ import annotations

import pytest

from quantdock.formats import num_words


@pytest.mark.parametrize(
    ("count", "bits", "dense", "loose"),
    [(128, 4, 16, 16), (128, 3, 12, 13), (128, 7, 28, 32), (1, 8, 1, 1), (0, 5, 0, 0)],
)
def test_loose_words_waste_what_the_bits_leave(count, bits, dense, loose):
    assert (num_words(count, bits), num_words(count, bits, dense=False)) == (dense, loose)
