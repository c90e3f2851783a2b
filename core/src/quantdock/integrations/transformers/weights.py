"""Streaming a checkpoint into a model: module by module, each tensor read once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from quantdock.checkpoint.header import TensorEntry
from quantdock.checkpoint.quantization_tensors import is_quantization_tensor
from quantdock.config import QuantizationConfig
from quantdock.errors import LoadError
from quantdock.formats import DTYPES
from quantdock.integrations.transformers.converted import convert
from quantdock.integrations.transformers.dense_experts import (
    W2,
    W13,
    bias_sources,
    is_bias,
    require_alike,
    stack_biases,
    stack_experts,
)
from quantdock.integrations.transformers.expert_places import bias_names
from quantdock.integrations.transformers.names import NameMap
from quantdock.integrations.transformers.tying import require_complete
from quantdock.layers import FusedMoE, LinearBase, MergedStore, VocabParallelEmbedding
from quantdock.loading.fill import check_layer, fill_layer, missing_tensors, read_dense
from quantdock.loading.fill_experts import (
    check_experts,
    fill_experts,
    missing_expert_tensors,
    require_fitting_experts,
)
from quantdock.loading.shapes import misshapen, require_shape
from quantdock.loading.sources import Sources
from quantdock.methods.cut import Part
from quantdock.methods.experts import ExpertFacts
from quantdock.numerics.dtypes import dtype_name
from quantdock.schemes import Kind, LayerFacts

# Layers that fill themselves from what the files store.
Filled = LinearBase | MergedStore | FusedMoE


@dataclass(slots=True)
class Streamer:
    """Fills the modules of ``model`` from ``sources``.

    ``dense`` is the config whose quantized tensors are decoded into plain weights (the user asked
    for none of its quantization); None where plain weights are stored plain. ``in_place`` writes
    into the tensors of a model that is loaded already, and ``checks_only`` looks whether it could:
    it reads, decodes and prepares all, a layer at a time, and writes nothing. ``lenient`` takes
    scales that are NaN, infinite or negative. ``experts`` says where the files have those of each
    module. ``apart`` is what decodes the codes of layers that keep a plain weight, by their prefix.
    """

    model: Any
    names: NameMap
    sources: Sources
    dtype: torch.dtype
    device: torch.device
    float32_parts: tuple[str, ...] = ()
    dense: QuantizationConfig | None = None
    in_place: bool = False
    checks_only: bool = False
    lenient: bool = False
    experts: Mapping[str, tuple[ExpertFacts, ...]] = field(default_factory=dict)
    apart: Mapping[str, QuantizationConfig] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    _made: dict[str, Tensor] = field(default_factory=dict)
    _of_experts: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        own = (expert for experts in self.experts.values() for expert in experts)
        self._of_experts = frozenset(facts.prefix for e in own for facts in (*e.w13, *e.w2))

    def run(self, track: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> None:
        """Fill every module; ``missing`` afterwards has the tensors no file holds.

        Raises:
            LoadError: a quantized layer lacks tensors; says so before anything is read.
        """
        self._require_layers()
        fill = check_layer if self.checks_only else fill_layer
        fill_stacks = check_experts if self.checks_only else fill_experts
        for name, module in track(list(self.model.named_modules())):
            if isinstance(module, LinearBase | MergedStore):
                fill(module, self.sources, self.device, self.lenient)
            elif isinstance(module, FusedMoE):
                fill_stacks(module, self.sources, self.device, self.lenient)
                self._fill_biases(name, module)
            for last, tensor in self._wanted(module):
                self._fill(f"{name}.{last}" if name else last, module, last, tensor)

    def _wanted(self, module: nn.Module) -> list[tuple[str, Tensor]]:
        """Return the tensors of ``module`` itself that are to be read."""
        skipped = set(module._non_persistent_buffers_set)
        if isinstance(module, Filled):
            skipped.update(own_names(module))
        return [
            (last, tensor)
            for kind in (module._parameters, module._buffers)
            for last, tensor in kind.items()
            if tensor is not None and last not in skipped and (tensor.is_meta or self.in_place)
        ]

    def _require_layers(self) -> None:
        """Raise if a quantized layer lacks a tensor, and name all that the model lacks."""
        named = dict(self.model.named_modules())
        layers = {name: m for name, m in named.items() if isinstance(m, Filled)}
        lost = [n for layer in layers.values() for n in _missing(layer, self.sources)]
        if not lost:
            require_fitting_experts(layers.values(), self.sources)
            return
        slots = {f"{name}.{slot}" for name, layer in layers.items() for slot in own_names(layer)}
        known = slots | self.model.all_tied_weights_keys.keys()
        known |= self.names.tensors.keys() | self.names.conversions.keys()
        plain = (name for name, _ in self.model.named_parameters())
        require_complete([*dict.fromkeys(lost), *(name for name in plain if name not in known)])

    def _fill_biases(self, name: str, layer: FusedMoE) -> None:
        for parameter, usual in bias_names(layer.shape.w13_order):
            declared = layer._parameters[parameter]
            sources = bias_sources(parameter, self.experts[name])
            stored = [self.sources.entry(source) for source in sources]
            if declared is None and layer.shape.has_bias:  # another rank adds it
                self.sources.mark(entry.name for entry in stored if entry is not None)
            if declared is None:
                continue
            lost = [n for n, entry in zip(sources, stored, strict=True) if entry is None]
            of_all = f"{self.names.layers.get(name, name)}.{usual}"
            mixes = parameter == "w13_bias" and getattr(layer.gate, "mixes", False)
            is_one = mixes and len(lost) == len(sources) and of_all in self.sources.tensors
            if lost and not is_one:
                self.missing += lost if len(lost) < len(sources) else [f"{name}.{usual}"]
                continue
            experts, in_turns = self.experts[name], of_all if is_one else ""
            whole = stack_biases(parameter, experts, layer.shape, self._read_as, in_turns)
            part = layer.bias_part(parameter, whole)
            self._put(f"{name}.{parameter}", layer, parameter, part, declared)

    def _fill(self, full: str, module: nn.Module, last: str, declared: Tensor) -> None:
        part = part_of(module, last)
        tensor = self._find(full, part)
        if tensor is None:
            self.missing.append(full)
            return
        if part is not None and tensor.shape == part.shape:
            tensor = tensor[part.region].clone()
        self._put(full, module, last, tensor, declared)

    def _put(
        self, full: str, module: nn.Module, last: str, tensor: Tensor, declared: Tensor
    ) -> None:
        """Make ``tensor`` the parameter or buffer ``last`` of ``module``, where it fits."""
        part = part_of(module, last)
        if tensor.is_floating_point() != declared.is_floating_point():
            raise LoadError(
                f"{full} is stored as {dtype_name(tensor.dtype)}, and the model has "
                f"{dtype_name(declared.dtype)} there.",
                why=["a cast between whole numbers and floats would change what it means"],
                todo="Load the weights that belong to this config.json.",
                names=(full,),
            )
        if tensor.shape != declared.shape:
            raise misshapen(full, tensor, tuple(part.shape if part else declared.shape))
        wanted = torch.float32 if any(p in full for p in self.float32_parts) else declared.dtype
        tensor = tensor.to(wanted) if tensor.is_floating_point() else tensor
        if self.checks_only:
            return
        if self.in_place:
            declared.data.copy_(tensor)
        elif last in module._buffers:
            module._buffers[last] = tensor
        else:
            module._parameters[last] = nn.Parameter(tensor, requires_grad=False)

    def _find(self, full: str, part: Part | None) -> Tensor | None:
        """Return the model tensor ``full`` from one file tensor or made of several, or None.

        Where the file has it as ``part`` says, only that part may be read and returned.
        """
        if full in self._made:
            return self._made.pop(full)
        name, _, last = full.rpartition(".")
        if name in self.experts and last in W13 | W2 and self._is_ours(full):
            return self._stacked(name, last)
        source = self.names.tensors.get(full)
        if source is not None and (source in self.sources.tensors or self._is_coded(source)):
            return self._read(source, part)
        conversion = self.names.conversions.get(full)
        if conversion is None:
            return None
        flat = convert(full, conversion, self.model, self._read)
        result: Tensor | None = flat.pop(full, None)
        self._made.update(flat)
        return result

    def _is_ours(self, full: str) -> bool:
        """Return whether a parameter of experts is made here: transformers knows no way to."""
        known = full in self.names.conversions or full in self.names.tensors
        return not known or (self.dense is not None and not is_bias(full))

    def _stacked(self, name: str, last: str) -> Tensor | None:
        """Return the parameter ``last`` of the experts module ``name``; None: no file has any."""
        module, experts = self.model.get_submodule(name), self.experts[name]
        if is_bias(last) and not any(map(self.sources.entry, bias_sources(last, experts))):
            return None
        if self.dense is not None:
            require_alike(last, experts, self.dense)
        return stack_experts(module, last, experts, self._read_as)

    def _is_coded(self, source: str) -> bool:
        """Return whether ``source`` is a weight of which the file stores codes, whatever they are.

        A weight that no file has, beside a bias alone, is not.
        """
        prefix, _, last = source.rpartition(".")
        if last != "weight":
            return False
        entry = self.sources.entry(source)
        if entry is not None:
            return not DTYPES[entry.dtype].floating
        under = self.sources.under(prefix)
        return any(is_quantization_tensor(name, e.dtype) for name, e in under.items())

    def _read(self, source: str, part: Part | None = None) -> Tensor:
        """Return one checkpoint tensor as a plain tensor, decoded where the file stores codes."""
        prefix = source.rpartition(".")[0]
        config = self.dense or self.apart.get(prefix)
        if config is not None and self._is_coded(source):
            kind: Kind = "experts" if prefix in self._of_experts else "linear"
            facts = LayerFacts(prefix=prefix, kind=kind, stored=self.sources.stored(prefix))
            decision = config.scheme_for(facts)
            config.refuse(decision, facts)
            if decision.scheme is not None:
                return read_dense(
                    config,
                    decision.scheme,
                    facts,
                    self.sources,
                    self.dtype,
                    self.device,
                    self.lenient,
                )
        entry = self.sources.entry(source)
        if entry is None:
            raise LoadError(
                f"{source} is not in the checkpoint.",
                why=[
                    f"it holds {', '.join(sorted(self.sources.under(prefix))) or 'nothing'} there"
                ],
                todo="Download the checkpoint again, or check its index.",
                names=(source,),
            )
        _require_plain(entry.name, entry)
        region = part.region if part is not None and entry.shape == part.shape else ()
        return self.sources.read(source, self.device, region)

    def _read_as(self, source: str, shape: tuple[int, ...]) -> Tensor:
        """Return the tensor ``source``, after checking that it has ``shape``."""
        entry = self.sources.entry(source)
        return require_shape(source, self._read(source), shape, entry.name if entry else "")


def _missing(layer: Filled, sources: Sources) -> Iterable[str]:
    if isinstance(layer, FusedMoE):
        return missing_expert_tensors(layer, sources)
    return missing_tensors(layer, sources)


def own_names(layer: Filled) -> tuple[str, ...]:
    """Return the tensors that a layer fills itself; the others are read like any plain tensor."""
    if isinstance(layer, MergedStore | FusedMoE):
        return tuple(layer._parameters)
    return layer.quant_method.frozen_names(layer)


def part_of(module: nn.Module, name: str) -> Part | None:
    """Return which part of a file's tensor a plain parameter of ``module`` holds; None: all."""
    if isinstance(module, LinearBase | VocabParallelEmbedding):
        return module.part(name)
    return None


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
