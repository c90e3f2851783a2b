"""Which layers a block covers that stands in the config of the language model only.

>>> covers("text_config", "model.visual.blocks.0.attn.qkv")
False
>>> covers("text_config", "model.language_model.layers.0.mlp.up_proj"), covers("", "visual.proj")
(True, True)
"""

from __future__ import annotations

# Components of names under which multimodal models keep what is no language model.
_TOWERS = (
    "vision",
    "visual",
    "vit",
    "vpm",
    "image",
    "audio",
    "apm",
    "speech",
    "resampler",
    "multi_modal_projector",
    "mm_projector",
    "connector",
    "aligner",
    "talker",
    "tts",
    "code2wav",
    "token2wav",
)
_DEPTH = 3  # components from the left in which a tower's name stands


def covers(scope: str, prefix: str) -> bool:
    """Return whether a block of sub-config ``scope`` ("": the whole model) covers ``prefix``."""
    if not scope:
        return True
    return not any(part.startswith(_TOWERS) for part in prefix.split(".")[:_DEPTH])
