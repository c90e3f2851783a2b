"""Layers whose decision surprises: plain among quantized ones, or quantized where few would be.

>>> from quantdock.plan import LayerPlan
>>> def layer(prefix, decision):
...     return LayerPlan(prefix=prefix, kind="linear", decision=decision, because="", source="")
>>> q, k = layer("layers.0.attn.q_proj", "quantized"), layer("layers.0.attn.k_proj", "unquantized")
>>> [text for text, names in split_shards([q, k])]
['q_proj is quantized and k_proj is not, in one attn']
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from quantdock.configs.matcher import FUSION
from quantdock.diagnosis.naming import by_text
from quantdock.plan import LayerPlan
from quantdock.schemes.layer_facts import is_router

_WHOLE_KINDS = {
    "head": "it decides between tokens whose logits are close",
    "embedding": "most runtimes expect it plain",
}
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")

Surprise = tuple[str, list[str]]  # what surprises, and the layers that do


def lonely_plain(layers: Iterable[LayerPlan]) -> Iterator[Surprise]:
    """Yield layers that are plain although most of the same name are quantized."""
    alike: dict[str, list[LayerPlan]] = defaultdict(list)
    for layer in layers:
        if layer.kind == "linear":
            alike[_NUMBER.sub("*", layer.prefix)].append(layer)
    for pattern, members in alike.items():
        plain = [layer for layer in members if layer.decision == "unquantized"]
        if plain and 2 * len(plain) < len(members):
            rest = f"{len(members) - len(plain):,} of {len(members):,} {pattern} are not"
            reasons = ((f"{layer.because}, {layer.source}", layer.prefix) for layer in plain)
            for reason, names in by_text(reasons).items():
                yield f"plain ({reason}), and {rest}", names


def split_shards(layers: Iterable[LayerPlan]) -> Iterator[Surprise]:
    """Yield parts of one fused layer (q, k, v; gate, up) of which some only are quantized."""
    known = {layer.prefix: layer for layer in layers if layer.decision != "error"}
    found = []
    for prefix in known:
        stem, _, last = prefix.rpartition(".")
        shards = next((s for s in FUSION.values() if s[0] == last), ())
        parts = [known[name] for s in shards if (name := f"{stem}.{s}") in known]
        if len({part.decision for part in parts}) > 1:
            done = [_last(p) for p in parts if p.decision == "quantized"]
            left = [_last(p) for p in parts if p.decision != "quantized"]
            text = f"{_are(done)} quantized and {_are(left)} not, in one {stem.rpartition('.')[2]}"
            found.append((text, stem))
    yield from by_text(found).items()


def odd_quantized(layers: Sequence[LayerPlan]) -> Iterator[Surprise]:
    """Yield routers, heads and embeddings that are quantized."""
    found = []
    for layer in layers:
        if layer.decision != "quantized":
            continue
        if layer.kind in _WHOLE_KINDS:
            found.append((f"a quantized {layer.kind}; {_WHOLE_KINDS[layer.kind]}", layer.prefix))
        elif layer.kind == "linear" and is_router(layer.prefix):
            found.append(("a quantized router; rounding changes which experts run", layer.prefix))
    yield from by_text(found).items()


def _last(layer: LayerPlan) -> str:
    return layer.prefix.rpartition(".")[2]


def _are(names: Sequence[str]) -> str:
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'}"
