"""Dialects: how quantized layers are written, so that QuantDock and other readers understand them.

Converted checkpoints and saved models share them. What a dialect writes is read back by its own
config before anything is written, so a scheme that it cannot express is found out, not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from quantdock.config import QuantizationConfig
from quantdock.errors import ConfigError, MethodNotYetError
from quantdock.formats import ELEMENTS
from quantdock.numerics import CanonicalWeight, encode_scale
from quantdock.schemes import LayerFacts, Scheme, StoredTensor

_SCALE_DTYPES = {"f32": "float32", "bf16": "bfloat16", "e8m0": "uint8"}
INPUT_SCALE = "input_scale"

# The block of config.json for layers (prefix -> scheme) and the linear layers that stay plain.
MakeBlock = Callable[[Mapping[str, Scheme], Sequence[str]], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One way to write quantized layers."""

    name: str  # as messages call it
    scale_name: str  # the weight's scale, beside "weight"
    make_block: MakeBlock
    reader: type[QuantizationConfig]

    def describe(self, scheme: Scheme, n: int, k: int) -> dict[str, StoredTensor]:
        """Return the tensors of a layer [n, k], by what follows its prefix."""
        spec = scheme.weight
        shape = (1,) if spec.granularity == "tensor" else spec.grid(n, k)
        stored = {
            "weight": StoredTensor(dtype=ELEMENTS[spec.element].storage, shape=(n, k)),
            self.scale_name: StoredTensor(dtype=_SCALE_DTYPES[spec.scale], shape=shape),
        }
        if scheme.is_static:
            stored[INPUT_SCALE] = StoredTensor(dtype="float32", shape=(1,))
        return stored

    def encode(self, scheme: Scheme, weight: CanonicalWeight) -> dict[str, Tensor]:
        """Return the tensors that ``describe`` announces, for a weight of one segment."""
        (segment,) = weight.segments
        stored = self.describe(scheme, *segment.codes.shape)
        scale = stored[self.scale_name]
        tensors = {
            "weight": segment.codes,
            self.scale_name: encode_scale(segment.scale, scale.dtype).reshape(scale.shape),
        }
        if INPUT_SCALE in stored:
            assert weight.input_scale is not None, "a static scheme has its input scale"
            tensors[INPUT_SCALE] = weight.input_scale.reshape(1)
        return tensors

    def why_not(self, layers: Mapping[str, Scheme]) -> tuple[str, ...]:
        """Return every reason these layers cannot be written; empty means they can."""
        examples = {scheme: prefix for prefix, scheme in layers.items()}
        try:
            config = self.reader.from_config(self.make_block(layers, ()))
        except (ConfigError, MethodNotYetError) as error:
            return (f"{self.name} has no words for {', '.join(map(str, examples))}", *error.why)
        return tuple(
            f"{self.name} cannot say that {prefix} is {scheme}"
            for scheme, prefix in examples.items()
            if config.scheme_for(LayerFacts(prefix=prefix)).scheme != scheme
        )
