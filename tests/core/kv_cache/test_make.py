"""Which codec is made."""

from __future__ import annotations

import torch

from quantdock.kv_cache import KVCodec, KVScale, make_codec
from quantdock.kv_cache.group_codec import GroupCodec
from quantdock.kv_cache.two_level_codec import TwoLevelCodec


def test_the_element_and_a_stored_scale_decide():
    scale = KVScale.of(torch.tensor(0.5))
    made = [make_codec(e, s) for e in ("fp8_e4m3", "fp4_e2m1") for s in (None, scale)]
    assert [type(codec) for codec in made] == [KVCodec, KVCodec, GroupCodec, TwoLevelCodec]
    assert [codec.is_dynamic for codec in made] == [True, False, True, True]
