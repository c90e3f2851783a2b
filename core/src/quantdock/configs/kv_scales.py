"""Names of KV-cache scales: they belong to attention, whatever module a tool stores them under.

>>> is_kv_scale("model.layers.0.self_attn.k_proj.k_scale")
True
>>> is_kv_scale("model.layers.0.self_attn.k_proj.weight_scale")
False
"""

from __future__ import annotations

import re

_PATTERN = re.compile(
    r"""(^|\.)(
        (k|v|kv|k_cache|v_cache|kv_cache)_(scale|zero_point|global_scale|scale_inv)
      | (q|prob|p)_scale                                # attention itself in fp8
      | (k|v|kv|qkv)_proj\.output_scale(_inv)?          # scales of a projection's output
      | (k|v|kv)_fake_quantizer\.qscale_act             # Mistral's own files
      | (k|v)_bmm_quantizer\.(_amax|_scale|scale)
    )$""",
    re.VERBOSE,
)


def is_kv_scale(name: str) -> bool:
    """Return whether the tensor called ``name`` is a scale (or zero point) of keys or values."""
    return _PATTERN.search(name) is not None
