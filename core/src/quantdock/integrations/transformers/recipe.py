"""What a model was loaded with, kept on it so that other weights can be loaded the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from quantdock.config import QuantizationConfig
from quantdock.integrations.transformers.found import FoundLayer
from quantdock.integrations.transformers.names import NameMap
from quantdock.integrations.transformers.weights import Streamer
from quantdock.kernel import Policy
from quantdock.layers.parallel_group import ALONE, ParallelGroup
from quantdock.loading.sources import Sources
from quantdock.platform import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a user may ask of ``load`` besides the path; see there."""

    quantization: str | None = None
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    platform: str | Platform | None = None
    policy: Policy = field(default_factory=Policy)
    ignore: Sequence[str] = ()
    choices: Mapping[str, str] | None = None
    kv_cache: str = "auto"
    tp: ParallelGroup = ALONE
    expert_parallel: bool = False
    merge: bool = False
    lenient: bool = False
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The options of a load, and what they came to."""

    options: Options
    platform: Platform
    device: torch.device
    dtype: torch.dtype
    float32_parts: tuple[str, ...]

    def streamer(
        self,
        model: Any,
        names: NameMap,
        sources: Sources,
        found: Sequence[FoundLayer],
        config: QuantizationConfig,
        *,
        is_dense: bool,
        in_place: bool = False,
        checks_only: bool = False,
    ) -> Streamer:
        """Return what fills ``model`` as this recipe says; see Streamer.

        Args:
            is_dense: every quantized tensor is decoded, by ``config``.
        """
        return Streamer(
            model=model,
            names=names,
            sources=sources,
            dtype=self.dtype,
            device=self.device,
            float32_parts=self.float32_parts,
            dense=config if is_dense else None,
            in_place=in_place,
            checks_only=checks_only,
            lenient=self.options.lenient,
            experts={layer.name: layer.experts for layer in found if layer.experts},
            apart={layer.facts.prefix: config for layer in found if layer.why_kept},
        )
