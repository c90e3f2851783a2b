"""Online shorthands: what a user may type for a 16-bit checkpoint, and the schemes it stands for.

Each word lists its schemes in the order in which a device is asked for them: the first one with a
kernel of its own wins. For ``fp8`` that is a scale per weight row and token first: it is at least
as accurate as one scale for the whole weight, and costs one multiplication of the finished product
where blocks rescale inside the reduction. Blocks come before one scale per weight, because they
bound the reach of an outlier; a scale for all tokens at once is the last resort.

>>> [str(scheme) for scheme in SHORTHANDS["fp8_per_block"]]
['fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic']
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from quantdock.formats import QuantSpec, SecondScale
from quantdock.schemes.scheme import Scheme

_TOKEN = QuantSpec(element="fp8_e4m3", rows=1, dynamic=True)
_CHANNEL_TOKEN = Scheme(weight=QuantSpec(element="fp8_e4m3", rows=1), activation=_TOKEN)
_TENSOR_TOKEN = Scheme(weight=QuantSpec(element="fp8_e4m3"), activation=_TOKEN)
_TENSOR_TENSOR = Scheme(
    weight=QuantSpec(element="fp8_e4m3"), activation=QuantSpec(element="fp8_e4m3", dynamic=True)
)
_BLOCK = Scheme(
    weight=QuantSpec(element="fp8_e4m3", rows=128, cols=128),
    activation=QuantSpec(element="fp8_e4m3", rows=1, cols=128, dynamic=True),
)
_MX_WEIGHT = QuantSpec(element="fp8_e4m3", rows=1, cols=32, scale="e8m0", rounding="ceil")
_MX_ACTIVATION = QuantSpec(
    element="fp8_e4m3", rows=1, cols=32, scale="e8m0", rounding="ceil", dynamic=True
)
_MXFP4 = QuantSpec(element="fp4_e2m1", rows=1, cols=32, scale="e8m0", rounding="even")
_NVFP4 = QuantSpec(element="fp4_e2m1", rows=1, cols=16, scale="e4m3", second=SecondScale())
_NVFP4_ACTIVATION = replace(_NVFP4, dynamic=True, second=SecondScale(dynamic=True))
_INT8_CHANNEL = QuantSpec(element="int8", rows=1)
_INT8_TOKEN = QuantSpec(element="int8", rows=1, dynamic=True)

SHORTHANDS: Mapping[str, tuple[Scheme, ...]] = MappingProxyType(
    {
        "fp8": (_CHANNEL_TOKEN, _BLOCK, _TENSOR_TOKEN, _TENSOR_TENSOR),
        "fp8_per_tensor": (_TENSOR_TOKEN, _TENSOR_TENSOR),
        "fp8_per_channel": (_CHANNEL_TOKEN,),
        "fp8_per_block": (_BLOCK,),
        "mxfp8": (Scheme(weight=_MX_WEIGHT, activation=_MX_ACTIVATION),),
        "mxfp4": (Scheme(weight=_MXFP4),),
        "nvfp4": (Scheme(weight=_NVFP4, activation=_NVFP4_ACTIVATION), Scheme(weight=_NVFP4)),
        "w8a8_int8": (Scheme(weight=_INT8_CHANNEL, activation=_INT8_TOKEN),),
        "int8_per_channel_weight_only": (Scheme(weight=_INT8_CHANNEL),),
    }
)
# Words that say both formats of a scheme: what they stand for is never substituted.
PROMISES = frozenset({"fp8_per_channel"})
