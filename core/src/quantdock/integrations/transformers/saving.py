"""``model.save_pretrained`` of a loaded model: its layers in the form in which files store them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from quantdock.convert.choice import choose_dialect
from quantdock.convert.chosen import plain_names
from quantdock.convert.dialect import exact_dtype
from quantdock.errors import SaveError
from quantdock.integrations.transformers.saved_layers import plain_tensors, saved_layers
from quantdock.numerics import CanonicalWeight, Segment
from quantdock.schemes import Scheme


def give_saving(model: Any, ranks: int = 1) -> None:
    """Let ``model.save_pretrained`` write what ``quantdock convert`` would.

    transformers alone would write kernel layouts without the block that says how to read them.
    What is given is bound to the model as a copy of it, or a pickled one, binds it anew.
    """
    model.save_pretrained = partial(_save_pretrained, model, ranks)


def _save_pretrained(model: Any, ranks: int, save_directory: Any, **options: Any) -> Any:
    """Write the model; the options are those of transformers, except ``state_dict``.

    Raises:
        SaveError: a layer's values were changed on the way to its kernel, no checkpoint format has
            words for its scheme, keys and values have scales of the file, or this is one of
            several ``ranks``.
    """
    if options.get("state_dict") is not None:
        raise SaveError(
            "A model with quantized layers is saved from its own tensors.",
            why=["state_dict was given; its layouts are not known"],
            todo="Leave state_dict out.",
        )
    _refuse_parts(ranks)
    _refuse_kv_scales(model)
    tensors, block = stored_form(model)
    with _said(model.config, block):
        plain_save: Callable[..., Any] = type(model).save_pretrained
        return plain_save(model, save_directory, **{**options, "state_dict": tensors})


def stored_form(model: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of ``model`` as files store them, and the block that describes them.

    Raises:
        SaveError: see ``give_saving``.
    """
    layers = list(saved_layers(model))
    schemes = {layer.prefix: layer.scheme for layer in layers}
    plan = model.quantdock_plan
    dialect = choose_dialect(schemes, plan.method)
    tensors = plain_tensors(model)
    made: dict[str, Tensor] = {}
    for layer in layers:
        weight = layer.restore()
        scale = _only_segment(layer.name, weight, layer.scheme).scale
        usual = dialect.scale_dtype(layer.scheme.weight, plan.dtype)
        stored = dialect.encode(layer.scheme, weight, exact_dtype(scale, usual))
        if layer.bias is not None:
            stored["bias"] = layer.bias
        made |= {f"{layer.name}.{last}": tensor for last, tensor in stored.items()}
    plain = plain_names(((layer.kind, layer.prefix) for layer in plan.layers), schemes)
    return tensors | dialect.collect(made), dialect.make_block(schemes, plain)


def _only_segment(name: str, weight: CanonicalWeight, scheme: Scheme) -> Segment:
    """Return the one segment of a weight, if that is encoded as its file said.

    Groups that were said to be in act-order may turn out to follow each other.

    Raises:
        SaveError: it is not.
    """
    specs = [segment.spec for segment in weight.segments]
    if specs not in ([scheme.weight], [replace(scheme.weight, act_order=False)]):
        raise SaveError(
            f"{name} cannot be saved: its weight is not that of one stored layer.",
            why=[f"it is {', '.join(map(str, specs))}, and its layer is {scheme.weight}"],
            todo="Copy the checkpoint the model was loaded from.",
        )
    return weight.segments[0]


def _refuse_parts(ranks: int) -> None:
    if ranks > 1:
        raise SaveError(
            f"A model that is divided among {ranks} ranks cannot be saved.",
            why=["each rank holds a part of its weights"],
            todo="Load it on one rank and save that, or run `quantdock convert`.",
        )


def _refuse_kv_scales(model: Any) -> None:
    """Raise if the model has scales of keys and values, which would be lost."""
    for name, module in model.named_modules():
        scales = getattr(module, "kv_scales", None)
        if scales is not None and (scales.k is not None or scales.v is not None):
            raise SaveError(
                "A model whose keys and values have scales of their own cannot be saved.",
                why=[f"{name} has them from its checkpoint, and they would not be written"],
                todo="Load it with kv_cache='none' and save that, or copy the checkpoint.",
            )


@contextmanager
def _said(config: Any, block: dict[str, Any]) -> Iterator[None]:
    """Let ``config`` say ``block`` while it is written; the loaded model goes on without."""
    config.quantization_config = block
    try:
        yield
    finally:
        del config.quantization_config
