"""The numbers of a loaded model: every quantized layer judged while one prompt runs through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quantdock.diagnosis.base_layers import BaseLayers
from quantdock.diagnosis.expert_numbers import expert_numbers, prefixes_of
from quantdock.diagnosis.forward_run import Run, run_forward
from quantdock.diagnosis.layer_numbers import BaseError, base_error, kernel_error
from quantdock.diagnosis.stored_weight import read_weight
from quantdock.layers import FusedMoE, LinearBase
from quantdock.loading.sources import Sources
from quantdock.methods.quantized import QuantizedLinearMethod
from quantdock.methods.quantized_experts import QuantizedExpertsMethod
from quantdock.numerics import CanonicalWeight

PROMPT = "Once upon a time there was a little girl, and she went out to see the world."
_FALLBACK_TOKENS = 16  # of arbitrary ids, where there is no tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNumbers:
    """One layer's errors; ``base`` is None where there was no 16-bit weight to compare with.

    Matrices of experts share the error of what their layer made of them all.
    """

    layer: str
    kernel: str
    error: float  # |kernel - oracle| / |oracle|
    tolerance: float  # what the kernel promises
    base: BaseError | None = None

    @property
    def is_bad(self) -> bool:
        """Return whether the kernel computes something else than its scheme means."""
        return not self.error <= self.tolerance


@dataclass(slots=True)
class ModelNumbers:
    """The layers in the order they ran, and what the pass as a whole came to."""

    run: Run = field(default_factory=Run)
    layers: list[LayerNumbers] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)  # layers whose 16-bit weight does not fit
    moved: list[str] = field(default_factory=list)  # vectors that the 16-bit base has otherwise
    num_without_input: int = 0  # layers that were given NaN or infinity, and are not judged
    num_nameless: int = 0  # matrices of experts that the 16-bit base stores in other ways
    num_tokens: int = 0
    perplexity: float | None = None  # None where the tokens mean nothing
    vocabulary: int = 0


@dataclass(slots=True)
class _Judge:
    """Compares each quantized layer when it has run; reads its file again for that."""

    sources: Sources
    base: BaseLayers | None
    wanted: set[str] | None
    numbers: ModelNumbers

    def __call__(self, name: str, module: nn.Module, given: tuple[Any, ...], y: Tensor) -> None:
        if isinstance(module, FusedMoE):
            self._experts(name, module, given, y)
        elif isinstance(module, LinearBase):
            self._linear(module, given[0], y)

    def _experts(self, name: str, module: FusedMoE, given: tuple[Any, ...], y: Tensor) -> None:
        method = module.quant_method
        if not isinstance(method, QuantizedExpertsMethod):
            return
        if self.wanted is not None and self.wanted.isdisjoint(prefixes_of(method)):
            return
        if not bool(given[0].isfinite().all()):
            self.numbers.num_without_input += 1
            return
        found = expert_numbers(module, method, given, y, self.base)
        self.numbers.unlike += found.unlike
        self.numbers.num_nameless += found.num_nameless
        errors: dict[str, BaseError | None] = {**found.based} or {name: None}
        for prefix, base in errors.items():
            self.numbers.layers.append(
                LayerNumbers(
                    layer=prefix,
                    kernel=str(method.kernels),
                    error=found.error,
                    tolerance=found.tolerance,
                    base=base,
                )
            )

    def _linear(self, module: LinearBase, x: Tensor, y: Tensor) -> None:
        method = module.quant_method
        if not isinstance(method, QuantizedLinearMethod):
            return
        if self.wanted is not None and module.facts.prefix not in self.wanted:
            return
        if not bool(x.isfinite().all()):
            self.numbers.num_without_input += 1
            return
        weight = self._weight(module, method)
        scheme, kernel = method.selection.scheme, method.selection.kernel
        x, y = x.cpu(), y.cpu()
        bias = None if module.bias is None else module.bias.detach().cpu()
        self.numbers.layers.append(
            LayerNumbers(
                layer=module.facts.prefix,
                kernel=kernel.name,
                error=kernel_error(scheme, weight, x, y, bias),
                tolerance=kernel.tolerance,
                base=self._base(module, method, weight, x),
            )
        )

    def _weight(self, module: LinearBase, method: QuantizedLinearMethod) -> CanonicalWeight:
        """Return what the kernel was given: the file's weight, or what value steps made of it."""
        if method.value_steps:
            restored: CanonicalWeight = method.kernel.restore(
                {name: p.cpu() for name, p in module._parameters.items() if p is not None}
            )
            return restored
        config: Any = method.decoder
        return read_weight(config, method.scheme, module.facts, method.pending.slots, self.sources)

    def _base(
        self, module: LinearBase, method: QuantizedLinearMethod, weight: CanonicalWeight, x: Tensor
    ) -> BaseError | None:
        if self.base is None:
            return None
        prefixes = module.facts.shards or (module.facts.prefix,)
        sizes = [self.base.shape(prefix) for prefix in prefixes]
        if sizes != [tuple(segment.codes.shape) for segment in weight.segments]:
            self.numbers.unlike.append(module.facts.prefix)
            return None
        shards = [self.base.read(prefix) for prefix in prefixes]
        return base_error(method.selection.scheme, weight, x, shards)


def measure(
    model: Any,
    folder: Path,
    tensors: Mapping[str, Any],
    base: BaseLayers | None,
    wanted: set[str] | None,
    trust_remote_code: bool,
) -> ModelNumbers:
    """Return the numbers of ``model``, which was loaded from ``tensors`` in ``folder``."""
    numbers = ModelNumbers()
    ids, means = _tokens(model, folder, trust_remote_code)
    numbers.num_tokens = ids.shape[1]
    judge = _Judge(sources=Sources(tensors), base=base, wanted=wanted, numbers=numbers)
    numbers.moved = base.moved(judge.sources) if base is not None else []
    numbers.run = run_forward(model, ids, judge)
    logits = numbers.run.logits
    if logits is not None:
        numbers.vocabulary = logits.shape[-1]
        numbers.perplexity = _perplexity(logits, ids) if means else None
    return numbers


def _tokens(model: Any, folder: Path, trust_remote_code: bool) -> tuple[Tensor, bool]:
    """Return token ids [1, T], and whether they are text that the model may know."""
    from transformers import AutoTokenizer

    device = model.get_input_embeddings().weight.device
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        ids = tokenizer(PROMPT, return_tensors="pt").input_ids
        if ids.shape[1] > 1:
            return ids.to(device), True
    except (OSError, ValueError, KeyError, ImportError):
        pass
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = (torch.arange(_FALLBACK_TOKENS) * 7 + 3) % vocabulary
    return ids[None].to(device), False


def _perplexity(logits: Tensor, ids: Tensor) -> float:
    """Return exp of the mean negative log-likelihood of every token but the first.

    Shapes:
        logits: [1, T, vocabulary]. ids: [1, T].
    """
    likelihoods = logits[0, :-1].float().log_softmax(-1).gather(1, ids[0, 1:, None])
    return float(likelihoods.double().mean().neg().exp())
