"""What of a checkpoint a loaded model has not read, and may not leave."""

from __future__ import annotations

from collections.abc import Iterator

from quantdock.integrations.transformers.weights import Streamer
from quantdock.loading.left_over import require_none_left


def require_all_read(streamer: Streamer) -> None:
    """Refuse tensors of the layers of a model that ``streamer`` has not read, as if they counted.

    Raises:
        LoadError: names them.
    """
    model, layers = streamer.model, streamer.names.layers
    built = {layers[name] for name, _ in model.named_modules() if name in layers}
    known = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    require_none_left(streamer.sources, built, set(_experts(streamer)), known)


def _experts(streamer: Streamer) -> Iterator[str]:
    """Yield the prefixes under which files may have the modules of routed experts."""
    for name, experts in streamer.experts.items():
        yield from (name, streamer.names.layers.get(name, name))
        for facts in (facts for expert in experts for facts in (*expert.w13, *expert.w2)):
            expert_prefix = facts.prefix.rpartition(".")[0]
            yield expert_prefix.rpartition(".")[0]
