"""QuantizeMethodBase: one layer's life, in the four steps that engine writers know.

>>> import torch
>>> from quantdock.layers import ReplicatedLinear
>>> layer = ReplicatedLinear(16, 32, bias=False)  # no quant_config: the unquantized method
>>> layer.weight.weight_loader(layer.weight, torch.full((32, 16), 0.5))
>>> layer.quant_method.process_weights_after_loading(layer)
>>> layer(torch.ones(1, 16))[0, 0].item()
8.0
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from quantdock.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from quantdock.kernels.quantized_input import InputFormat, QuantizedInput


class QuantizeMethodBase(ABC):
    """How one layer stores, finishes and uses its weights; signatures as in vLLM and SGLang."""

    @abstractmethod
    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: Sequence[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Declare the layer's slots and register its parameters.

        Each parameter gets ``weight_loader(parameter, loaded, shard=0)``, which engines that push
        tensors call; ``loaded`` is what the file has, whole. Layers pass ``cuts``, which part of
        each shard is theirs (quantdock.methods.cut), and sizes per partition are those of the
        parts.
        """

    @abstractmethod
    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Turn what was loaded into the kernel's layout; a second call changes nothing."""

    @abstractmethod
    def apply(
        self, layer: torch.nn.Module, x: Tensor | QuantizedInput, bias: Tensor | None = None
    ) -> Tensor:
        """Return ``x @ weight.T + bias``; x is [..., K], the result [..., N] in x's dtype.

        Raises:
            FormatError: x is quantized, and not as ``input_format`` wants it.
        """

    def input_format(self, layer: torch.nn.Module) -> InputFormat | None:
        """Return how x may be quantized before the layer is called; None: it may not be."""
        return None

    def apply_partial(self, layer: torch.nn.Module, x: Tensor | QuantizedInput) -> Tensor:
        """Return ``x @ weight.T`` of a rank that holds some columns, to be summed over ranks.

        In f32 where that saves a rounding; the sum is then rounded once.
        """
        return self.apply(layer, x)

    def frozen_names(self, layer: torch.nn.Module) -> tuple[str, ...]:
        """Return the parameters whose dtype is part of the format and must never be cast."""
        return ()

    @property
    def main_name(self) -> str:
        """Return the parameter that ``layer.weight`` is: whatever has the codes, in any layout."""
        return "weight"


class MethodSource(Protocol):
    """What a layer asks for its method: a QuantizationConfig."""

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase:
        """Return the method of ``layer``."""
        ...


def require_config(source: object) -> None:
    """Raise where a layer's ``quant_config`` is a class, which decides nothing yet.

    Raises:
        ConfigError: says how a config is made of it.
    """
    if isinstance(source, type):
        name = source.__name__
        raise ConfigError(
            f"quant_config is the class {name}, not a config.",
            why=["a class says nothing of this checkpoint, or of the device"],
            todo=f"Make one: {name}.from_config(quantization_config of the checkpoint), or "
            f"{name}.online() to quantize 16-bit weights; then .bind(dispatch_for(platform)).",
        )
