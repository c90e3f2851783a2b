"""What headers show of damaged experts: plans and a quick look find what loading refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load_file, save_file

import quantdock
from quantdock.errors import QuantDockError
from tests.toy_files import copy_checkpoint
from tests.toy_fp4 import fp8_blocks, is_expert, mxfp4, nvfp4, rewrite

E, WIDTH = 4, 128
QWEN = {
    "num_experts": E,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": WIDTH,
    "num_hidden_layers": 1,
}
STEM = "model.layers.0.mlp.experts"
DOWN = f"{STEM}.1.down_proj"
_MX = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
BLOCKS = {
    "modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*"]},
    "quark": {"quant_method": "quark", "global_quant_config": {"weight": _MX}},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
STORAGES = {"modelopt": nvfp4, "quark": mxfp4, "fp8": fp8_blocks}
Tensors = dict[str, torch.Tensor]
Edit = Callable[[Tensors], None]


def drop(*ends: str) -> Edit:
    def edit(tensors: Tensors) -> None:
        found = [name for name in tensors if any(end in name for end in ends)]
        assert found
        for name in found:
            del tensors[name]

    return edit


def change(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    def edit(tensors: Tensors) -> None:
        tensors[name] = make(tensors[name]).contiguous()

    return edit


def add(name: str) -> Edit:
    return lambda tensors: tensors.update({name: torch.ones(4)})


def narrow(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[..., :-1]


def fewer(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:-1]


def in_16_bits(tensors: Tensors) -> None:
    drop(f"{DOWN}.")(tensors)
    tensors[f"{DOWN}.weight"] = torch.zeros(256, WIDTH, dtype=torch.bfloat16)


def one_more(tensors: Tensors) -> None:
    for name in [name for name in tensors if name.startswith(f"{STEM}.0.")]:
        tensors[name.replace(f"{STEM}.0.", f"{STEM}.{E}.")] = tensors[name].clone()


def again(tensors: Tensors) -> None:
    for name in [name for name in tensors if name.startswith(f"{DOWN}.")]:
        tensors[name.replace("down_proj", "w2")] = tensors[name].clone()


def of_each(scale: str) -> dict[str, tuple[Edit, str]]:
    """Return damages of experts that are stored one by one, and what each must be named by."""
    return {
        "no scale": (drop(f"{DOWN}.{scale}"), f"{DOWN}.{scale}"),
        "narrow scale": (change(f"{DOWN}.{scale}", narrow), DOWN),
        "float64 scale": (change(f"{DOWN}.{scale}", torch.Tensor.double), f"{DOWN}.{scale}"),
        "no expert": (drop(f"{STEM}.1."), f"{STEM}.1.gate_proj"),
        "no last expert": (drop(f"{STEM}.{E - 1}."), f"{STEM}.{E - 1}.up_proj"),
        "no weight": (drop(f"{DOWN}."), DOWN),
        "16 bits": (in_16_bits, DOWN),
        "one more": (one_more, f"{STEM}.{E}.gate_proj"),
        "twice": (again, f"{STEM}.1.w2"),
        "no matrix": (change(f"{DOWN}.weight", lambda t: t[None]), f"{DOWN}.weight"),
        "fewer rows": (change(f"{STEM}.1.gate_proj.weight", fewer), f"{STEM}.1.gate_proj.weight"),
        "stray": (add(f"{DOWN}.odd_scale"), f"{DOWN}.odd_scale"),
        "stray of all": (add(f"{STEM}.gate_up_proj_zeros"), f"{STEM}.gate_up_proj_zeros"),
    }


DAMAGES = {
    "modelopt": of_each("weight_scale")
    | {
        "no second scale": (drop(f"{DOWN}.weight_scale_2"), f"{DOWN}.weight_scale_2"),
        "no second scales": (drop(".weight_scale_2"), f"{STEM}.weight_scale_2"),
        "wide second scale": (
            change(f"{DOWN}.weight_scale_2", lambda t: t.expand(3).clone()),
            f"{DOWN}.weight_scale_2",
        ),
        "no input scale": (drop(f"{DOWN}.input_scale"), f"{DOWN}.input_scale"),
    },
    "quark": of_each("weight_scale"),
    "fp8": of_each("weight_scale_inv"),
}
ROWS = [(kind, name) for kind, damages in DAMAGES.items() for name in damages]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a function: kind -> a sound checkpoint whose experts are stored so."""
    from transformers import AutoConfig, AutoModelForCausalLM

    made = {}

    def make(kind):
        if kind not in made:
            fields = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
            config = AutoConfig.for_model("qwen3_moe", vocab_size=64, head_dim=64, **fields, **QWEN)
            folder = tmp_path_factory.mktemp("whole") / kind
            AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
            storage = STORAGES[kind]
            rewrite(folder, BLOCKS[kind], lambda layer: storage if is_expert(layer) else None)
            made[kind] = folder
        return made[kind]

    return make


@pytest.fixture
def damaged(tmp_path):
    """Return a function: (a sound folder, an edit of its tensors) -> a damaged copy."""

    def make(source, edit):
        folder = copy_checkpoint(source, tmp_path / "damaged")
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return make


def refusal(folder) -> str:
    """Return what loading says, empty where it loads."""
    try:
        quantdock.load(folder, device="cpu", dtype="float32")
    except QuantDockError as error:
        return str(error)
    return ""


def found(folder) -> tuple[str, str]:
    """Return what a quick look fails at, and what a plan warns of."""
    report = quantdock.doctor(folder, platform="cpu:generic", dtype="float32", quick=True)
    told = [
        " ".join((f"{name}: {finding.what}", *finding.why, *finding.names))
        for outcome in report.outcomes
        for finding in outcome.findings
        for name in finding.names
        if finding.level == "fail"
    ]
    plan = quantdock.explain(folder, "cpu:generic", dtype="float32")
    stops = ("loading would stop", "cannot be built")
    warned = [text for text in plan.warnings if any(stop in text for stop in stops)]
    return "\n".join(told), "\n".join(warned)


def require_named(name: str, text: str) -> None:
    """Require that ``text`` speaks of a layer, or of a tensor beside its layer."""
    layer, _, tensor = name.rpartition(".")
    assert name in text or (layer in text and tensor in text), text


@pytest.mark.parametrize("kind", BLOCKS)
def test_what_is_whole_loads_and_nothing_is_found(whole, kind):
    assert (refusal(whole(kind)), *found(whole(kind))) == ("", "", "")


def test_a_bias_of_one_expert_is_not_asked_of_the_others(whole, damaged):
    """It may be zero, which loading takes, and headers do not show that."""
    bias = {f"{DOWN}.bias": torch.zeros(256)}
    folder = damaged(whole("modelopt"), lambda tensors: tensors.update(bias))
    assert (refusal(folder), *found(folder)) == ("", "", "")


@pytest.mark.parametrize(("kind", "name"), ROWS)
def test_what_loading_refuses_is_found_without_a_byte_of_data(whole, damaged, kind, name):
    edit, culprit = DAMAGES[kind][name]
    folder = damaged(whole(kind), edit)
    refused = refusal(folder)
    for text in (refused, *found(folder)):
        require_named(culprit, text)


STACKED = {
    "no scales": (drop("0.mlp.experts.down_proj_scales"), "down_proj_scales"),
    "no blocks": (drop("0.mlp.experts.down_proj_blocks"), "down_proj_blocks"),
    "narrow scales": (change(f"{STEM}.down_proj_scales", narrow), "down_proj_scales"),
    "narrow blocks": (change(f"{STEM}.gate_up_proj_blocks", narrow), "gate_up_proj_blocks"),
    "float32 scales": (change(f"{STEM}.gate_up_proj_scales", torch.Tensor.float), "gate_up_proj_s"),
    "fewer experts": (change(f"{STEM}.gate_up_proj_scales", fewer), "gate_up_proj_scales"),
    "no bias": (drop("0.mlp.experts.down_proj_bias"), "down_proj_bias"),
    "flat blocks": (
        change(f"{STEM}.gate_up_proj_blocks", lambda t: t.flatten(2)),
        "gate_up_proj_blocks",
    ),
    "narrow bias": (change(f"{STEM}.gate_up_proj_bias", narrow), "gate_up_proj_bias"),
    "one weight": (drop("0.mlp.experts.down_proj_"), "down"),
}


@pytest.mark.parametrize("name", STACKED)
def test_experts_in_one_tensor(shared, damaged, name):
    edit, culprit = STACKED[name]
    folder = damaged(shared / "models" / "gptoss-mxfp4-even", edit)
    for text in (refusal(folder), *found(folder)):
        assert STEM in text and culprit in text, text


def test_16_bit_experts_that_are_stored_turned_are_planned_as_they_are_run(shared):
    """gpt-oss has [K, N] for each expert: a plan of quantizing them is that of its own file."""
    bases, stored = shared / "models" / "bases", shared / "models" / "gptoss-mxfp4-even"
    plans = [
        quantdock.explain(bases / "gptoss-random", "cpu:generic", "mxfp4"),
        quantdock.explain(stored, "cpu:generic"),
    ]
    assert not any("loading would stop" in text for plan in plans for text in plan.warnings)
    shown = [
        [(x.prefix, x.copies, x.n, x.k, x.bytes_memory, x.scheme) for x in p.layers] for p in plans
    ]
    assert sorted(shown[0]) == sorted(shown[1])


def test_gate_and_up_in_one_tensor_have_the_rows_of_both(whole, damaged):
    """192 rows of each take two blocks; a plan sees the same experts as loading does."""
    half = {f"{STEM}.{part}": (E, *shape) for part, shape in SHAPES.items()}

    def stack(tensors: Tensors) -> None:
        drop(STEM)(tensors)
        for name, shape in half.items():
            dtype = torch.float32 if name.endswith("scale_inv") else torch.float8_e4m3fn
            tensors[name] = torch.ones(shape).to(dtype)

    folder = damaged(whole("fp8"), stack)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"moe_intermediate_size": 128', WIDER))
    assert (refusal(folder), *found(folder)) == ("", "", "")
    plan = quantdock.explain(folder, "cpu:generic")
    (both,) = [layer for layer in plan.layers if layer.prefix == f"{STEM}.gate_up_proj"]
    assert (both.n, both.k, both.decision) == (384, 256, "quantized")


WIDER = '"moe_intermediate_size": 192'
SHAPES = {
    "gate_up_proj": (384, 256),
    "gate_up_proj_scale_inv": (4, 2),
    "down_proj": (256, 192),
    "down_proj_scale_inv": (2, 2),
}
