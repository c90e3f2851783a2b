"""A transformers model without memory: its modules and names on the meta device."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Any

import torch
import transformers

from quantdock.errors import CheckpointError

# While it builds, transformers sets torch's default dtype, which all threads share.
_BUILDING = Lock()


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
    except Exception as error:  # its checks of fields raise errors of many kinds
        raise CheckpointError(
            f"transformers {transformers.__version__} cannot read the model config of {folder}.",
            why=_first_lines(error),
            todo="Correct the field if one is named. Else install a transformers release that "
            "knows the model, or pass trust_remote_code=True if you trust the folder's code.",
            path=folder,
        ) from error
    for part in (config, *_sub_configs(config)):
        for name in ("quantization_config", "compression_config"):
            if hasattr(part, name):
                delattr(part, name)
    return config


def _first_lines(error: Exception) -> list[str]:
    """Return what ``error`` says, in two lines at most, with the name of its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()][:2]
    return [f"{type(error).__name__}: {lines[0]}", *lines[1:]] if lines else [type(error).__name__]


def _sub_configs(config: Any) -> list[Any]:
    names = getattr(config, "sub_configs", {})
    return [part for name in names if (part := getattr(config, name, None)) is not None]


def build_skeleton(config: Any, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    """Return the model that ``config`` describes, every tensor on the meta device.

    Raises:
        CheckpointError: transformers cannot build it from these values.
    """
    stated = getattr(config, "architectures", None)
    architecture = str(stated[0]) if isinstance(stated, list) and stated else ""
    model_class: Any = getattr(transformers, architecture, None)
    try:
        with _BUILDING, torch.device("meta"):
            if hasattr(model_class, "_from_config"):
                model = model_class._from_config(config, dtype=dtype)
            else:
                model = transformers.AutoModelForCausalLM.from_config(
                    config, dtype=dtype, trust_remote_code=trust_remote_code
                )
    except Exception as error:
        raise CheckpointError(
            f"transformers {transformers.__version__} cannot build the model of config.json.",
            why=[f"architecture {architecture or 'not stated'}", *_first_lines(error)],
            todo="Correct the field, or download config.json again.",
        ) from error
    return model.eval()


def adopt_generation_config(model: Any, folder: Path) -> None:
    """Take the folder's generation settings, as transformers' own loading does.

    Raises:
        CheckpointError: they cannot be read.
    """
    file = folder / "generation_config.json"
    if file.is_file() and model.can_generate():
        try:
            model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
        except Exception as error:
            raise CheckpointError(
                f"{file} cannot be read.",
                why=_first_lines(error),
                todo="Correct it, download it again, or delete it: only defaults are lost.",
                path=file,
            ) from error
    model.config._name_or_path = str(folder)


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
