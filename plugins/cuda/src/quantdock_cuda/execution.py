"""One layer on a GPU: how x is quantized and multiplied, worked out once and kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from quantdock.kernels.scaled_linear import result_shape
from quantdock.schemes import Scheme, parse_scheme
from quantdock_cuda import block_matmul, fused_matmul, libraries, tiling
from quantdock_cuda.device import counters, device_of
from quantdock_cuda.fused_matmul import MOST_ROWS as MOST_FUSED
from quantdock_cuda.fused_matmul import FusedMatmul
from quantdock_cuda.library import Layer
from quantdock_cuda.quantized_input import converts
from quantdock_cuda.replays import Replays
from quantdock_cuda.unpacked import UNPACK, unpacked
from quantdock_triton import matmul
from quantdock_triton.quantize import quantizer
from quantdock_triton.tile import Form, Tile
from quantdock_triton.widen import widener

# (codes or x, its scale, weight, its scale, bias, M) to the result [M, N].
Product = Callable[[Tensor, "Tensor | None", Tensor, Tensor, "Tensor | None", int], Tensor]


def form_of(scheme: Scheme, scale_rows: int, n: int) -> Form:
    """Return the form of the operands of a layer [n, K] whose weight has so many rows of scales."""
    weight, x = scheme.weight, scheme.activation
    return Form(
        x_cols=0 if x is None else x.cols or 0,
        weight_cols=weight.cols or 0,
        weight_rows=1 if scale_rows in (1, n) else weight.rows or 1,
        element=weight.element,
        weight_only=x is None,
    )


class Execution:
    """Runs a layer of one scheme, shape and dtype on one GPU; made by ``execution``.

    Args:
        scale_rows: rows of the weight's scale.
        num_static: static scales of x, one per fused shard; 0 where they are computed.
        dtype: of x and of the result.
        alone: each row is computed as if it were alone: in one way for any number of rows.
    """

    def __init__(
        self,
        scheme: str,
        n: int,
        k: int,
        scale_rows: int,
        num_static: int,
        dtype: torch.dtype,
        bias_dtype: torch.dtype | None,
        device: int,
        alone: bool = False,
    ) -> None:
        parsed = parse_scheme(scheme)
        spec, x_spec = parsed.weight, parsed.activation
        if alone and x_spec is not None and x_spec.dynamic and x_spec.rows is None:
            x_spec = replace(x_spec, rows=1)
        self._alone = alone
        self._n, self._k, self._device = n, k, device
        self._dtype, self._bias_dtype = dtype, bias_dtype
        self._facts = device_of(device)
        self._form = form_of(parsed, scale_rows, n)
        one_for_x = x_spec is not None and x_spec.granularity == "tensor"
        self._one_scale = (one_for_x, spec.granularity == "tensor" and scale_rows == 1)
        self._quantize = None
        if x_spec is not None:
            ptx = converts(x_spec, self._facts.features)
            early = "dependent_launch" in self._facts.features
            together = self._facts.num_sms if early else 0
            self._quantize = quantizer(x_spec, k, num_static, ptx, early=early, together=together)
        self._x_spec, self._num_static = x_spec, num_static
        self._products: dict[int, Product] = {}
        self._fused: dict[int, FusedMatmul | None] = {}  # products that quantize x themselves
        self.replays = Replays(self._whole, device)

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        weight_scale: Tensor,
        input_scale: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """Return ``x @ weight.T + bias`` for x [M, K], M >= 1, columns side by side."""
        m, x_scale = x.shape[0], None
        if m <= MOST_FUSED:
            found = self._by_fusion(x, weight, weight_scale, input_scale, bias)
            if found is not None:
                return found
        if self._quantize is not None:
            x, x_scale = self._quantize(x, input_scale, counters.slots(self._device))
        return self.multiply(x, x_scale, weight, weight_scale, bias, m)

    def _by_fusion(
        self,
        x: Tensor,
        weight: Tensor,
        weight_scale: Tensor,
        input_scale: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor | None:
        """Return the result of the kernel that quantizes x itself; None where it does not serve."""
        m = x.shape[0]
        if m not in self._fused:
            self._fused[m] = self._fuse(m)
        run, counts = self._fused[m], counters(self._device)
        if run is None or (run.counts and counts is None):
            return None
        out = torch.empty((m, self._n), dtype=self._dtype, device=x.device)
        run(x, weight, weight_scale, input_scale, bias, out, counts)
        return out

    def _fuse(self, m: int) -> FusedMatmul | None:
        """Return the product of ``m`` rows that quantizes them, if there is one to be preferred."""
        if self._x_spec is None or self._alone:
            return None
        return fused_matmul.matmul(
            self._form, self._x_spec, self._facts, self._n, self._k, fused_matmul.rows_of(m),
            self._num_static, self._dtype, self._bias_dtype is not None,
        )  # fmt: skip

    def multiply(
        self,
        x: Tensor,
        x_scale: Tensor | None,
        weight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None,
        m: int,
    ) -> Tensor:
        """Return the result of x as the quantization writes it: codes [M + 0..3, K] and scales."""
        rows = 1 if self._alone else tiling.bucket(m)
        product = self._products.get(rows)
        if product is None:
            product = self._products[rows] = self._choose(rows)
        return product(x, x_scale, weight, weight_scale, bias, m)

    def _whole(self, x: Tensor, *others: Any) -> Tensor:
        """Return the result for x [..., K] whose rows follow each other."""
        shape = result_shape(x, self._n, self._k)
        return self(x.view(-1, self._k), *others).view(shape)

    def _choose(self, rows: int) -> Product:
        """Return the best way for about ``rows`` rows of x that can run this layer."""
        if self._alone:
            alone = self._tiled(tiling.alone(self._form, self._facts))
            assert alone is not None, "it is a tile that runs everything"
            return alone
        one_scale = self._one_scale == (True, True)
        for way in tiling.ways(self._form, self._facts, self._n, self._k, rows, one_scale):
            made = self._tiled(way) if isinstance(way, Tile) else self._by_library(way)
            if made is not None:
                return made
        raise AssertionError("the last way is a tile that runs everything")

    def _by_library(self, name: str) -> Product | None:
        """Return the product of a library; None if it is not there or takes no such operands."""
        if self._form.weight_only:
            return self._by_unpacking() if name == UNPACK else self._by_widening
        layer = Layer(
            form=self._form,
            features=self._facts.features,
            n=self._n,
            k=self._k,
            scales=self._one_scale,
            dtype=self._dtype,
            bias_dtype=self._bias_dtype,
        )
        found = libraries.product_for(name, layer)
        if found is None:
            return None
        multiply, dtype = found, self._dtype

        def product(
            x: Tensor,
            x_scale: Tensor | None,
            weight: Tensor,
            weight_scale: Tensor,
            bias: Tensor | None,
            m: int,
        ) -> Tensor:
            assert x_scale is not None, "libraries take no weight-only layers"
            try:
                return multiply(x, x_scale, weight, weight_scale, bias, m, dtype)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # of those that compile at the first call
                if name == libraries.LIBRARY:
                    raise
                libraries.leave(name, error)
                self._products.clear()
                return self.multiply(x, x_scale, weight, weight_scale, bias, m)

        return product

    def _by_unpacking(self) -> Product | None:
        """Return the product that unpacks codes as tensor cores multiply; None: x has 32 bits."""
        if self._dtype == torch.float32:
            return None
        run = unpacked(self._form, self._facts, self._n, self._k)
        return self._writing(lambda x, x_scale, *others: run(x, *others))

    def _by_widening(
        self,
        x: Tensor,
        x_scale: Tensor | None,
        weight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None,
        m: int,
    ) -> Tensor:
        widen = widener(self._form, self._n, self._k)
        result = linear(x, widen(weight, weight_scale, self._dtype))
        return result if bias is None else result.add_(bias)

    def _tiled(self, tile: Tile) -> Product | None:
        """Return the product in tiles of ``tile``; None if they do not fit this layer or GPU."""
        has_bias = self._bias_dtype is not None
        if tiling.needs(tile) - self._facts.features:
            return None
        if tile.roles and not block_matmul.takes(self._form, tile, self._k):
            return None
        make = block_matmul.matmul if tile.roles else matmul.matmul
        return self._writing(make(self._form, tile, self._n, self._k, has_bias))

    def _writing(self, run: Callable[..., None]) -> Product:
        """Return the product of what writes it to a tensor, with counters for divided sums."""

        def product(
            x: Tensor,
            x_scale: Tensor | None,
            weight: Tensor,
            weight_scale: Tensor,
            bias: Tensor | None,
            m: int,
        ) -> Tensor:
            out = torch.empty((m, self._n), dtype=self._dtype, device=x.device)
            run(x, x_scale, weight, weight_scale, bias, out, counters(self._device))
            return out

        return product


execution = lru_cache(maxsize=1 << 14)(Execution)  # one for all layers of these facts
