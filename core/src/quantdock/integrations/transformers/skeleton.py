"""A transformers model without memory: its modules and names on the meta device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from quantdock.errors import CheckpointError


def read_model_config(folder: Path, trust_remote_code: bool) -> Any:
    """Return the transformers config of ``folder`` without its quantization block.

    The block is QuantDock's to read; transformers' own quantizers stay out of the way.

    Raises:
        CheckpointError: transformers does not know the model.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=trust_remote_code
        )
    except (ValueError, KeyError, OSError, ImportError) as error:
        raise CheckpointError(
            f"transformers {transformers.__version__} cannot read the model config of {folder}.",
            why=[str(error).splitlines()[0]],
            todo="Install a transformers release that knows the model, or pass "
            "trust_remote_code=True if you trust the code in that folder.",
            path=folder,
        ) from error
    for part in (config, *_sub_configs(config)):
        for name in ("quantization_config", "compression_config"):
            if hasattr(part, name):
                delattr(part, name)
    return config


def _sub_configs(config: Any) -> list[Any]:
    names = getattr(config, "sub_configs", {})
    return [part for name in names if (part := getattr(config, name, None)) is not None]


def build_skeleton(config: Any, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    """Return the model that ``config`` describes, every tensor on the meta device."""
    architecture = (getattr(config, "architectures", None) or [""])[0]
    model_class = getattr(transformers, architecture, None)
    with torch.device("meta"):
        if model_class is not None:
            model = model_class._from_config(config, dtype=dtype)
        else:
            model = transformers.AutoModelForCausalLM.from_config(
                config, dtype=dtype, trust_remote_code=trust_remote_code
            )
    return model.eval()


def restore_computed_buffers(model: Any, device: torch.device) -> None:
    """Give buffers that no checkpoint stores (rotary frequencies) memory and their values.

    Must run while parameters are still on the meta device, so that initialising a module that
    has both changes no loaded weight.
    """
    for module in model.modules():
        names = [
            name
            for name, buffer in module._buffers.items()
            if buffer is not None and name in module._non_persistent_buffers_set and buffer.is_meta
        ]
        for name in names:
            module._buffers[name] = torch.empty_like(module._buffers[name], device=device)
        if names:
            model._init_weights(module)


def keep_in_float32(model: Any, dtype: torch.dtype) -> tuple[str, ...]:
    """Return the name parts of parameters that the model's authors keep in float32."""
    always = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    for_half = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    if dtype == torch.float32:
        return ()
    return tuple(sorted(always | (for_half if dtype == torch.float16 else set())))


def set_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Replace the submodule called ``name``."""
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
