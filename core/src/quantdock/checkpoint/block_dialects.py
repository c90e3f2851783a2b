"""Quantization blocks in older or foreign spellings, and how they become ordinary ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantdock.errors import ConfigError

# Keys that give away a method where quant_method is absent; all of a row must be there.
_SIGNS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"quant_algo"}), "modelopt"),
    (frozenset({"config_groups"}), "compressed-tensors"),
    (frozenset({"load_in_4bit"}), "bitsandbytes"),
    (frozenset({"load_in_8bit"}), "bitsandbytes"),
    (frozenset({"w_bit", "q_group_size"}), "awq"),
)
_RENAMED = {"sparseml": "compressed-tensors"}


def infer_method(block: Mapping[str, Any]) -> str:
    """Return the method name that ``block`` says or gives away; "" where it does neither."""
    said = block.get("quant_method")
    if isinstance(said, str) and said.strip():
        return _RENAMED.get(said, said)
    producer = block.get("producer")
    name = producer.get("name") if isinstance(producer, Mapping) else producer
    if isinstance(name, str) and name.lower().startswith("modelopt"):
        return "modelopt"
    return next((method for keys, method in _SIGNS if keys <= block.keys()), "")


def flatten(block: dict[str, Any]) -> dict[str, Any]:
    """Return ``block`` with a nested block lifted to its top level; outer keys are kept.

    Two tools nest: ModelOpt's side file under "quantization", sparseml under
    "quantization_config" (beside "sparsity_config").
    """
    for key in ("quantization", "quantization_config"):
        if isinstance(block.get(key), Mapping):
            inner = dict(block.pop(key))
            block = {**block, **inner}
    return block


# Mistral's own files: what qscheme_act says of activations.
_ACTIVATIONS = {None: "static", "TENSOR": "static", "NO_SCALES": "dynamic"}


def from_mistral_params(params: Mapping[str, Any]) -> object:
    """Return the fp8 block that "quantization" of a params.json stands for; None without one.

    A block of another dialect in that place is passed through.

    Raises:
        ConfigError: a word that no release has used.
    """
    block = params.get("quantization")
    if not isinstance(block, Mapping) or "quant_method" in block or "config_groups" in block:
        return block
    weight, activation = block.get("qformat_weight"), block.get("qscheme_act")
    wrong = []
    if weight != "fp8_e4m3":
        wrong.append(f"qformat_weight is {weight!r}; known: 'fp8_e4m3'")
    if activation not in _ACTIVATIONS:
        wrong.append(f"qscheme_act is {activation!r}; known: 'TENSOR', 'NO_SCALES' or absent")
    if wrong:
        raise ConfigError(
            "params.json has a quantization block that is not understood.",
            why=wrong,
            todo="Use the files of the same model in the transformers layout.",
            field="params.json: quantization",
        )
    return {"quant_method": "fp8", "activation_scheme": _ACTIVATIONS[activation]}


def from_tensor_table(content: dict[str, Any]) -> dict[str, Any]:
    """Return the block of a file that gives each tensor its type (ModelSlim)."""
    return {"quant_method": "modelslim", "quant_description": content}
