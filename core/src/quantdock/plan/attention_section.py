"""What a plan says of keys and values, in lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quantdock.plan.grouping import collapse_all
from quantdock.plan.plan import LayerPlan, show_bytes


def attention_sections(layers: Sequence[LayerPlan]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield a title and its facts, as name and text, for attention layers that are alike."""
    alike: dict[tuple[str | None, str, str, int | None], list[LayerPlan]] = {}
    for layer in layers:
        key = (layer.scheme, layer.because, layer.source, layer.bytes_per_token)
        alike.setdefault(key, []).append(layer)
    for (scheme, because, source, size), members in alike.items():
        facts = [("why", f"{because} ({source})")]
        if size is not None:
            total = show_bytes(size * len(members))
            facts.append(("memory", f"{total} a token in {len(members):,} layers"))
        facts.append(("layers", ", ".join(collapse_all(layer.prefix for layer in members))))
        yield scheme or "in the model's dtype", facts
