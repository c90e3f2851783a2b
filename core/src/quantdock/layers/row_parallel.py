"""The linear layer whose input features are divided among ranks."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from quantdock.kernels.quantized_input import InputFormat, QuantizedInput, refused
from quantdock.layers.linear import LinearBase
from quantdock.layers.options import LinearOptions
from quantdock.layers.parallel_group import ALONE, ParallelGroup
from quantdock.layers.partition import Division, require_shardable
from quantdock.methods.cut import Cut


class RowParallelLinear(LinearBase):
    """Each rank multiplies its part of the input; the result is the sum over ranks.

    Parts are summed in f32 and rounded once, with the bias in the first rank's, so that it is
    added once. Dynamic scales of activations are those of each rank's part of a token.

    Args:
        input_is_parallel: the input is this rank's part already; else all of it, and the layer
            takes its part.
        division: how the input is divided; None: columns stand alone.
        group: the ranks. Without a process group each rank returns its f32 part of the sum.
    Raises:
        ConfigError: the input cannot be divided among the ranks; lists how many ranks could.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        input_is_parallel: bool = True,
        *,
        division: Division | None = None,
        group: ParallelGroup = ALONE,
        **options: Unpack[LinearOptions],
    ) -> None:
        name = options.get("prefix") or type(self).__name__
        division = division or Division(name=name, size=input_size, side="columns")
        require_shardable([division], group.size, name)
        columns = division.part(group.rank, group.size)
        cut = Cut(n=output_size, k=input_size, rows=range(output_size), columns=columns)
        super().__init__(input_size, output_size, bias, cuts=[cut], **options)
        self.group = group
        self._columns = None if input_is_parallel else slice(columns.start, columns.stop)
        if not input_is_parallel:
            self.in_features = input_size

    def forward(self, input: Tensor | QuantizedInput) -> Tensor:
        """Return [..., N] for ``input`` [..., this rank's features], or [..., K]."""
        if self.group.size == 1:
            return super().forward(input)
        part = self._part(input)
        result = self.quant_method.apply_partial(self, part).to(torch.float32)
        if self.bias is not None and self.group.rank == 0:
            result = result + self.bias
        if self.group.process_group is None:
            return result
        return self.group.all_reduce(result).to(input.dtype)

    @property
    def input_format(self) -> InputFormat | None:
        """Return how this rank's part may be quantized; None where the layer itself takes it."""
        return super().input_format if self._columns is None else None

    def _part(self, input: Tensor | QuantizedInput) -> Tensor | QuantizedInput:
        """Return this rank's features of the input."""
        if self._columns is None:
            return input
        if isinstance(input, QuantizedInput):
            raise refused(f"A layer that divides its input ({self.prefix})", input, "x itself")
        return input[..., self._columns]
