"""The layers of a model by its own classes, for those who convert a checkpoint without loading it.

Names mislead: some models keep transposed matrices or tables under names of linear layers.
"""

from __future__ import annotations

import logging

import torch

from quantdock.checkpoint import Checkpoint
from quantdock.errors import CheckpointError
from quantdock.integrations.transformers.found import find_layers
from quantdock.integrations.transformers.names import map_names
from quantdock.integrations.transformers.skeleton import build_skeleton, read_model_config
from quantdock.loading.sources import Sources
from quantdock.schemes import LayerFacts

_log = logging.getLogger(__name__)


def model_layers(
    checkpoint: Checkpoint, trust_remote_code: bool = False
) -> tuple[LayerFacts, ...] | None:
    """Return the layers of the model that transformers builds, under the checkpoint's names.

    None where transformers does not know the model, after saying so in the log.
    """
    try:
        config = read_model_config(checkpoint.folder, trust_remote_code)
    except CheckpointError as error:
        _log.warning("%s Linear layers are told by the names of their tensors.", error.what)
        return None
    model = build_skeleton(config, torch.bfloat16, trust_remote_code)
    names = map_names(model, checkpoint.tensors)
    found = find_layers(model, names, Sources(checkpoint.tensors))
    return tuple(layer.facts for layer in found if not layer.why_kept)
