"""Tensors that were read, and the shape of their place in the model."""

from __future__ import annotations

from torch import Tensor

from quantdock.errors import LoadError


def require_shape(name: str, tensor: Tensor, wanted: tuple[int, ...], whole: str = "") -> Tensor:
    """Return ``tensor``, which is read as ``name``.

    Args:
        whole: the tensor of the file that it is a part of, if it is.
    Raises:
        LoadError: its shape is not ``wanted``.
    """
    if tuple(tensor.shape) != wanted:
        raise misshapen(name, tensor, wanted, whole)
    return tensor


def misshapen(name: str, tensor: Tensor, wanted: tuple[int, ...], whole: str = "") -> LoadError:
    """Return the error for a tensor of another shape than ``wanted``."""
    told = name if whole in ("", name) else f"{name}, a part of {whole},"
    return LoadError(
        f"{told} has shape {list(tensor.shape)} in the checkpoint.",
        why=[f"the model is built for {list(wanted)}"],
        todo="Load the weights that belong to this config.json.",
        names=(whole or name,),
    )
