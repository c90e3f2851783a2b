"""Reading the scales of keys and values that a checkpoint stores, under whichever name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quantdock.config import QuantizationConfig
from quantdock.configs.kv_scales import KVScaleNames, is_largest_value
from quantdock.errors import LoadError
from quantdock.formats import ELEMENTS
from quantdock.kv_cache import KVScale, KVScales
from quantdock.loading.sources import Sources
from quantdock.schemes import KVCacheSpec

_FNUZ = "fnuz"
_LARGEST_E4M3 = ELEMENTS["fp8_e4m3"].largest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadScales:
    """What a layer's scales are, and which of them the file really has."""

    scales: KVScales
    has_keys: bool = False
    has_values: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KVScaleReader:
    """Reads the scales of one layer after another; ``heads`` is None where it is not known."""

    sources: Sources
    config: QuantizationConfig
    spec: KVCacheSpec
    heads: int | None = None

    def read(self, names: KVScaleNames) -> ReadScales:
        """Return the scales stored under ``names``; 1.0 for what is missing, if codes are floats.

        Raises:
            LoadError: a number of scales that is neither 1 nor that of the heads, or a cache with
                zero points.
        """
        for name in names.zero_points:
            self._require_zero(name)
        keys, key_warnings = self._read(names.of_keys)
        values, value_warnings = self._read(names.of_values)
        return ReadScales(
            scales=KVScales(k=self._or_one(keys), v=self._or_one(values)),
            has_keys=keys is not None,
            has_values=values is not None,
            warnings=(*key_warnings, *value_warnings),
        )

    def _read(self, names: Sequence[str]) -> tuple[Tensor | None, list[str]]:
        """Return the f32 scale [1] or [H] of ``names``, and what is wrong with some of them."""
        found: list[Tensor] = []
        warnings = []
        for name in names:
            scale = self._scale(name)
            if bool((scale.isfinite() & (scale > 0)).all()):
                found.append(scale)
            else:
                warnings.append(f"{name} is {scale.tolist()[:4]} and is not used")
        if not found:
            return None, warnings
        if any(not torch.equal(found[0], other) for other in found[1:]):
            warnings.append(f"{' and '.join(names)} differ: the largest is used")
        largest = found[0]
        for other in found[1:]:
            largest = torch.maximum(largest, other)
        return largest, warnings

    def _scale(self, name: str) -> Tensor:
        """Return one stored scale as f32 [1] or [H]."""
        stored = self.sources.read(name).reshape(-1)
        if stored.numel() not in (1, self.heads or stored.numel()):
            raise LoadError(
                f"{name} has {stored.numel()} scales.",
                why=[f"one is for all heads, {self.heads} are one for each"],
                todo="Load with kv_cache='none' to keep keys and values in the model's dtype.",
                names=(name,),
            )
        if is_largest_value(name):
            element = ELEMENTS[self.spec.element.removesuffix(_FNUZ)]
            largest = element.largest * (_LARGEST_E4M3 if self.spec.has_second else 1.0)
            stored = stored.to(torch.float32) / largest
        return self.config.decode_kv_scale(stored, self.spec)

    def _or_one(self, scale: Tensor | None) -> KVScale | None:
        if scale is not None:
            return KVScale.of(scale)
        if not self.spec.is_float:
            return None
        return KVScale.of(self.config.decode_kv_scale(torch.ones(1), self.spec))

    def _require_zero(self, name: str) -> None:
        if bool((self.sources.read(name).to(torch.float32) != 0).any()):
            raise LoadError(
                f"{name} is not zero.",
                why=["keys and values are kept symmetrically, without zero points"],
                todo="Load with kv_cache='none' to keep them in the model's dtype.",
                names=(name,),
            )
