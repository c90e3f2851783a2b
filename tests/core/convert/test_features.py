"""What a dialect lacks words for, by the scheme that it would have words for."""

from __future__ import annotations

import pytest

from quantdock.convert.compressed import COMPRESSED
from quantdock.convert.features import lacking
from quantdock.convert.gptq import GPTQ
from quantdock.convert.modelopt import MODELOPT
from quantdock.schemes import parse_scheme

NVFP4 = "fp4_e2m1[1x16]:e4m3:second[*x*]"


@pytest.mark.parametrize(
    ("dialects", "text", "lacks"),
    [
        (
            [MODELOPT, COMPRESSED],
            f"{NVFP4} x fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]-dynamic",
            "the second scale of its inputs is computed at run time, and files store one",
        ),
        ([GPTQ], "int4[1x64] x int8[1x*]:dynamic", "its inputs are quantized"),
        ([MODELOPT], f"{NVFP4} + input multiplier", "its inputs are multiplied first"),
    ],
)
def test_the_first_feature_without_which_there_are_words(dialects, text, lacks):
    (reason,) = lacking(dialects, {"a.b": parse_scheme(text)})
    assert reason.startswith(f"a.b: {lacks}")


def test_what_has_words_or_none_at_all_lacks_nothing_that_can_be_named():
    layers = {"a": parse_scheme("int4[1x64]"), "b": parse_scheme("fp8_e4m3fnuz[1x*]")}
    assert list(lacking([GPTQ], layers)) == []
