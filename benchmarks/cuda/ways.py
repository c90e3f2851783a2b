"""The ways to keep a decoder's weights that are compared end to end, and how each is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

import quantdock
from benchmarks.cuda.decoder import PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to keep the weights.

    Attributes:
        stored: the checkpoint. online: what QuantDock quantizes it to while it is loaded.
        merge: layers of one input share kernel tensors.
        is_peer: transformers loads it, with ``config`` where that says more than the checkpoint.
        needs: packages without which transformers cannot.
    """

    stored: str = PLAIN
    online: str | None = None
    merge: bool = False
    is_peer: bool = False
    config: Callable[[], Any] | None = None
    needs: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """Return what is needed and not installed."""
        return [package for package in self.needs if not _is_installed(package)]


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of what it lies in
        return False


def _own(name: str, **options: Any) -> Callable[[], Any]:
    """Return what makes transformers' config ``name``."""
    return lambda: getattr(transformers, name)(**options)


def _torchao(name: str, **options: Callable[[Any], Any]) -> Callable[[], Any]:
    """Return what makes a torchao config; options are made of torchao.quantization."""

    def make() -> Any:
        from torchao import quantization

        made = {key: value(quantization) for key, value in options.items()}
        return transformers.TorchAoConfig(getattr(quantization, name)(**made))

    return make


def _tiles_of_int4(quantization: Any) -> Any:
    from torchao.quantization.quantize_.workflows import Int4PackingFormat

    return Int4PackingFormat.TILE_PACKED_TO_4D


def _peer(config: Callable[[], Any] | None, *needs: str, stored: str = PLAIN) -> Way:
    return Way(stored=stored, is_peer=True, config=config, needs=needs)


_COMPRESSED = "compressed_tensors"
_AO_FP8 = "Float8DynamicActivationFloat8WeightConfig"
WAYS = {
    PLAIN: Way(is_peer=True),
    "fp8_per_block": Way(online="fp8_per_block"),
    "fp8_per_channel": Way(online="fp8_per_channel"),
    "fp8_per_tensor": Way(online="fp8_per_tensor"),
    "fp8_static": Way(stored="fp8_static"),
    "stored_fp8_per_channel": Way(stored="fp8_per_channel"),
    "fp8_weight_only": Way(stored="fp8_weight_only"),
    "w8a8_int8": Way(stored="w8a8_int8"),
    "gptq": Way(stored="gptq"),
    "gptq_act_order": Way(stored="gptq_act_order"),
    "awq": Way(stored="awq"),
    "w4a16": Way(stored="w4a16"),
    "mxfp4": Way(stored="mxfp4"),
    "nvfp4": Way(stored="nvfp4"),
    "merged_fp8_per_block": Way(online="fp8_per_block", merge=True),
    "merged_fp8_per_channel": Way(online="fp8_per_channel", merge=True),
    "merged_w4a16": Way(stored="w4a16", merge=True),
    "transformers_fp8_block": _peer(_own("FineGrainedFP8Config"), "kernels"),
    "transformers_compressed_fp8": _peer(
        _own("CompressedTensorsConfig", use_optimized_inference=True),
        _COMPRESSED,
        stored="fp8_per_channel",
    ),
    "transformers_compressed_w4a16": _peer(None, _COMPRESSED, stored="w4a16"),
    "transformers_torchao_fp8": _peer(
        _torchao(_AO_FP8, granularity=lambda module: module.PerRow()), "torchao"
    ),
    "transformers_torchao_int8": _peer(_torchao("Int8WeightOnlyConfig"), "torchao"),
    "transformers_torchao_int8_dynamic": _peer(
        _torchao("Int8DynamicActivationInt8WeightConfig"), "torchao"
    ),
    "transformers_torchao_int4": _peer(
        _torchao("Int4WeightOnlyConfig", int4_packing_format=_tiles_of_int4), "torchao"
    ),
    "transformers_bitsandbytes_int8": _peer(
        _own("BitsAndBytesConfig", load_in_8bit=True), "bitsandbytes"
    ),
    "transformers_bitsandbytes_nf4": _peer(
        _own(
            "BitsAndBytesConfig",
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16,
        ),
        "bitsandbytes",
    ),
    "transformers_quanto_int8": _peer(_own("QuantoConfig", weights="int8"), "optimum.quanto"),
    "transformers_quanto_int4": _peer(_own("QuantoConfig", weights="int4"), "optimum.quanto"),
    "transformers_gptq": _peer(None, "gptqmodel", "optimum", stored="gptq"),
    "transformers_gptq_act_order": _peer(None, "gptqmodel", "optimum", stored="gptq_act_order"),
    "transformers_awq": _peer(None, "gptqmodel", stored="awq"),
}


def load(way: Way, source: Path) -> Any:
    """Return the model whose weights, of the checkpoint ``source``, are kept in one way."""
    if not way.is_peer:
        return quantdock.load(source, way.online, "cuda", "bfloat16", merge=way.merge)
    options = {} if way.config is None else {"quantization_config": way.config()}
    return AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.bfloat16, device_map="cuda", **options
    )
