"""Names of KV-cache scales: they belong to attention, whatever module a tool stores them under.

>>> is_kv_scale("model.layers.0.self_attn.k_proj.k_scale")
True
>>> is_kv_scale("model.layers.0.self_attn.k_proj.weight_scale")
False
>>> names = ["h.0.attn.k_proj.k_scale", "h.0.attn.kv_scale", "h.1.mlp.k_scale"]
>>> assign_kv_scales(names, ["h.0.attn"])["h.0.attn"].of_keys
('h.0.attn.k_proj.k_scale',)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_PATTERN = re.compile(
    r"""(^|\.)(
        (k|v|kv|k_cache|v_cache|kv_cache)_(scale|zero_point|global_scale|scale_inv)
      | (q|prob|p)_scale | prob_output_scale            # attention itself in fp8
      | (q|k|v|kv|qkv)_proj\.output_scale(_inv)?        # scales of a projection's output
      | (q|k|v|kv)_fake_quantizer\.qscale_act           # Mistral's own files
      | (q|k|v|p|softmax)_bmm_quantizer\.(_amax|_scale|scale)
    )$""",
    re.VERBOSE,
)
# Whose a tensor is, and what it holds. All scales multiply, those called "inv" too.
_PARTS = re.compile(
    r"(?:^|\.)(?P<half>k|v|kv|qkv)_(?:cache_|proj\.output_|fake_quantizer\.|bmm_quantizer\.)?"
    r"(?P<part>scale|scale_inv|qscale_act|_scale|_amax|zero_point)$"
)

_OFTEN = (".weight", ".bias", ".weight_scale", ".weight_scale_inv")  # most tensors of a file


def is_kv_scale(name: str) -> bool:
    """Return whether the tensor called ``name`` is a scale (or zero point) of keys or values."""
    return _PATTERN.search(name) is not None


def has_kv_scales(names: Iterable[str]) -> bool:
    """Return whether one of ``names`` is a scale of keys or values, such as k_scale."""
    return any(_PARTS.search(name) for name in names if not name.endswith(_OFTEN))


@dataclass(frozen=True, slots=True, kw_only=True)
class KVScaleNames:
    """The tensors that one attention layer's scales are stored in, in file order.

    A tensor for both counts where there is none for keys or for values alone.
    """

    of_keys: tuple[str, ...] = ()
    of_values: tuple[str, ...] = ()
    zero_points: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Return every name once."""
        return tuple(dict.fromkeys((*self.of_keys, *self.of_values, *self.zero_points)))


def is_largest_value(name: str) -> bool:
    """Return whether a tensor holds the largest magnitude instead of a scale."""
    return name.endswith("_amax")


def assign_kv_scales(names: Iterable[str], prefixes: Iterable[str]) -> Mapping[str, KVScaleNames]:
    """Return for each attention layer in ``prefixes`` its tensors among ``names``, if any.

    A tensor belongs to the layer whose prefix its name begins with; the longest counts.
    """
    owners = sorted(prefixes, key=len, reverse=True)
    parts: dict[str, dict[str, list[str]]] = {prefix: {} for prefix in owners}
    for name in names:
        found = _PARTS.search(name)
        owner = next((prefix for prefix in owners if name.startswith(f"{prefix}.")), None)
        if found is None or owner is None:
            continue
        role = "zero" if found["part"] == "zero_point" else found["half"]
        parts[owner].setdefault(role, []).append(name)
    return {prefix: _names(roles) for prefix, roles in parts.items()}


def _names(roles: Mapping[str, list[str]]) -> KVScaleNames:
    both = [*roles.get("kv", ()), *roles.get("qkv", ())]
    return KVScaleNames(
        of_keys=tuple(roles.get("k", both)),
        of_values=tuple(roles.get("v", both)),
        zero_points=tuple(roles.get("zero", ())),
    )
