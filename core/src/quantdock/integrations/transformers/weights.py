"""Streaming a checkpoint into a model: module by module, each tensor read once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from quantdock.checkpoint.header import TensorEntry
from quantdock.config import QuantizationConfig
from quantdock.errors import LoadError
from quantdock.formats import DTYPES
from quantdock.integrations.transformers.names import NameMap
from quantdock.layers import LinearBase
from quantdock.loading.fill import fill_layer, read_dense
from quantdock.loading.sources import Sources
from quantdock.schemes import LayerFacts


@dataclass(slots=True)
class Streamer:
    """Fills the modules of ``model`` from ``sources``.

    ``dense`` is the config whose quantized tensors are decoded into plain weights (the user asked
    for none of its quantization); None where plain weights are stored plain.
    """

    model: Any
    names: NameMap
    sources: Sources
    dtype: torch.dtype
    device: torch.device
    float32_parts: tuple[str, ...] = ()
    dense: QuantizationConfig | None = None
    missing: list[str] = field(default_factory=list)
    _made: dict[str, Tensor] = field(default_factory=dict)

    def run(self, track: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> None:
        """Fill every module; ``missing`` afterwards has the tensors no file holds."""
        for name, module in track(list(self.model.named_modules())):
            if isinstance(module, LinearBase):
                fill_layer(module, self.sources, self.device)
            for kind in (module._parameters, module._buffers):
                for last, tensor in list(kind.items()):
                    full = f"{name}.{last}" if name else last
                    if tensor is not None and tensor.is_meta:
                        self._fill(full, module, last, tensor)

    def _fill(self, full: str, module: nn.Module, last: str, declared: Tensor) -> None:
        tensor = self._find(full)
        if tensor is None:
            self.missing.append(full)
            return
        if tensor.shape != declared.shape:
            raise LoadError(
                f"{full} has shape {list(tensor.shape)} in the checkpoint.",
                why=[f"the model is built for {list(declared.shape)}"],
                todo="Load the weights that belong to this config.json.",
                names=(full,),
            )
        wanted = torch.float32 if any(p in full for p in self.float32_parts) else declared.dtype
        tensor = tensor.to(wanted) if tensor.is_floating_point() else tensor
        if last in module._buffers:
            module._buffers[last] = tensor
        else:
            module._parameters[last] = nn.Parameter(tensor, requires_grad=False)

    def _find(self, full: str) -> Tensor | None:
        """Return the model tensor ``full`` from one file tensor or made of several, or None."""
        if full in self._made:
            return self._made.pop(full)
        if full in self.names.tensors:
            return self._read(self.names.tensors[full])
        conversion = self.names.conversions.get(full)
        if conversion is None:
            return None
        converter = conversion.fresh()
        for source, pattern in conversion.sources:
            converter.add_tensor(full, source, pattern, lambda source=source: self._read(source))
        made = converter.convert(full, model=self.model, config=self.model.config)
        flat = {key: value[0] if isinstance(value, list) else value for key, value in made.items()}
        result: Tensor | None = flat.pop(full, None)
        self._made.update(flat)
        return result

    def _read(self, source: str) -> Tensor:
        """Return one checkpoint tensor as a plain tensor, decoded where the file stores codes."""
        prefix, _, last = source.rpartition(".")
        entry = self.sources.tensors.get(source)
        if entry is None:
            raise LoadError(
                f"{source} is not in the checkpoint.",
                why=[
                    f"it holds {', '.join(sorted(self.sources.under(prefix))) or 'nothing'} there"
                ],
                todo="Download the checkpoint again, or check its index.",
                names=(source,),
            )
        if self.dense is not None and not DTYPES[entry.dtype].floating and last == "weight":
            facts = LayerFacts(prefix=prefix, stored=self.sources.stored(prefix))
            decision = self.dense.scheme_for(facts)
            self.dense.refuse(decision, facts)
            if decision.scheme is not None:
                return read_dense(
                    self.dense, decision.scheme, facts, self.sources, self.dtype, self.device
                )
        _require_plain(source, entry)
        return self.sources.read(source, self.device)


def _require_plain(source: str, entry: TensorEntry) -> None:
    """Refuse codes where the model wants numbers: a cast would give nonsense without a word."""
    if DTYPES[entry.dtype].floating or entry.dtype.startswith(("int", "bool")):
        return
    raise LoadError(
        f"{source} is stored as {entry.dtype}, and its layer is not quantized.",
        why=["codes cannot be used as weights without their scale"],
        todo="Name the method with quantization=..., or check the checkpoint's ignore list.",
        names=(source,),
    )
