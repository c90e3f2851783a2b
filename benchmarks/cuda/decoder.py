"""Checkpoints of a decoder of real size with random weights, plain and quantized on the GPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from quantdock.convert.goals import GOALS
from quantdock.convert.rounding import round_weight
from quantdock.formats import QuantSpec
from quantdock.numerics import CanonicalWeight
from quantdock.schemes import Scheme

PLAIN = "bf16"
LAYERS = 32
SIZES = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}  # of Llama 3 8B
_FILE_BYTES = "4GB"
_INDEX = "model.safetensors.index.json"
_STATIC = QuantSpec(element="fp8_e4m3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a quantized checkpoint holds.

    Attributes:
        word: for ``quantdock convert --to``. act_order: groups of columns that lie apart.
        input_scale: one for all activations of a layer; None: as the word has it.
        weight_only: activations stay as they are.
    """

    word: str
    act_order: bool = False
    input_scale: float | None = None
    weight_only: bool = False

    @property
    def scheme(self) -> Scheme:
        """Return the scheme of every quantized layer."""
        scheme = GOALS[self.word].scheme(self.word)
        if self.input_scale is not None:
            scheme = replace(scheme, activation=_STATIC)
        if self.weight_only:
            scheme = scheme.weight_only()
        return replace(scheme, weight=replace(scheme.weight, act_order=self.act_order))


STORED = {
    "fp8_per_channel": Stored(word="fp8_per_channel"),
    # Random weights keep activations below 9.
    "fp8_static": Stored(word="fp8_per_tensor", input_scale=0.02),
    "fp8_weight_only": Stored(word="fp8_per_channel", weight_only=True),
    "gptq": Stored(word="gptq"),
    "gptq_act_order": Stored(word="gptq", act_order=True),
    "awq": Stored(word="awq"),
    "w4a16": Stored(word="w4a16"),
    "w8a8_int8": Stored(word="w8a8_int8"),
    "mxfp4": Stored(word="mxfp4"),
    "nvfp4": Stored(word="nvfp4"),
}


def checkpoint(folder: Path, name: str, layers: int, device: str = "cuda", **sizes: int) -> Path:
    """Return the folder of the decoder as ``name`` has it, written unless it is there.

    Args:
        name: PLAIN, or one of STORED. sizes: take the place of SIZES.
    """
    target, unfinished = (folder / f"{name}-{layers}{end}" for end in ("", ".partial"))
    if not target.is_dir():
        shutil.rmtree(unfinished, ignore_errors=True)
        if name == PLAIN:
            _write_plain(unfinished, layers, device, SIZES | sizes)
        else:
            plain = checkpoint(folder, PLAIN, layers, device, **sizes)
            _write_quantized(plain, unfinished, STORED[name], device)
        unfinished.rename(target)
    return target


def _write_plain(target: Path, layers: int, device: str, sizes: dict[str, int]) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(**sizes, num_hidden_layers=layers, dtype="bfloat16")
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(target, max_shard_size=_FILE_BYTES)


def _write_quantized(source: Path, target: Path, stored: Stored, device: str) -> None:
    """Write what ``quantdock convert`` makes of ``source``, computed on the GPU."""
    target.mkdir(parents=True)
    scheme = stored.scheme
    weight_map: dict[str, str] = {}
    layers: dict[str, Scheme] = {}
    plain: list[str] = []
    for file in sorted(source.glob("*.safetensors")):
        made: dict[str, Tensor] = {}
        for name, tensor in load_file(file, device=device).items():
            prefix = name.removesuffix(".weight")
            if not prefix.endswith("_proj"):
                made[name] = tensor
                if prefix == "lm_head":
                    plain.append(prefix)
                continue
            layers[prefix] = scheme
            made |= {f"{prefix}.{last}": part for last, part in _encoded(stored, tensor)}
        save_file(made, target / file.name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(made, file.name)
    (target / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = json.loads((source / "config.json").read_text())
    block = GOALS[stored.word].dialect.for_layers(layers).make_block(layers, plain)
    config |= {"quantization_config": block}
    (target / "config.json").write_text(json.dumps(config))


def _encoded(stored: Stored, values: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that are stored of a weight, by what follows the layer's name."""
    dialect, scheme = GOALS[stored.word].dialect, stored.scheme
    scale_dtype = dialect.scale_dtype(scheme.weight, "bfloat16")
    weight = _rounded(values, scheme, scale_dtype, divides=dialect.divides)
    if stored.input_scale is not None:
        weight = replace(weight, input_scale=torch.tensor([stored.input_scale]))
    for last, tensor in dialect.encode(scheme, weight, scale_dtype).items():
        yield last, tensor.contiguous().cpu()


def _rounded(values: Tensor, scheme: Scheme, scale_dtype: str, *, divides: bool) -> CanonicalWeight:
    """Return ``values`` [N, K] quantized; in act-order the columns are grouped at random.

    Layers of one input have one order, as GPTQ's have: that of their number of columns.
    """
    spec = scheme.weight
    if not spec.act_order:
        return round_weight(values, spec, scale_dtype, divides=divides)
    k = values.shape[1]
    order = torch.randperm(k, generator=torch.Generator().manual_seed(k)).to(values.device)
    plain = round_weight(values[:, order], replace(spec, act_order=False), scale_dtype)
    (segment,) = plain.segments
    back = order.argsort()
    groups = (torch.arange(k, device=values.device) // (spec.cols or k)).to(torch.int32)
    codes = segment.codes[:, back].contiguous()
    ordered = replace(segment, spec=spec, codes=codes, group_index=groups[back])
    return CanonicalWeight(segments=(ordered,))
