"""One mixture in every form in which files have experts: the same bits, or an error with a name."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import quantdock
from model_outputs import logits
from quantdock.errors import LoadError
from quantdock.layers import FusedMoE
from tests.toy_files import copy_checkpoint, edit_config, edit_tensors

E, I = 4, 192  # noqa: E741
QWEN = {"num_experts": E, "num_experts_per_tok": 2, "moe_intermediate_size": I}


def load(folder, quantization=None, **options):
    return quantdock.load(folder, quantization, device="cpu", **options)


def convert(folder, target, method, where="model.layers.*"):
    choices = {f"{where}.mlp.experts.*": method}
    return quantdock.convert_checkpoint(folder, target, method, choices=choices).target


def stack(folder, layers: int = 2) -> None:
    """Store gate and up of all experts in one tensor, down in another; scales beside them."""

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        for layer in range(layers):
            stem = f"model.layers.{layer}.mlp.experts"
            for part, suffix in (("weight", ""), ("weight_scale_inv", "_scale_inv")):
                if f"{stem}.0.down_proj.{part}" not in tensors:
                    continue

                def one(role: str, stem: str = stem, part: str = part) -> list[torch.Tensor]:
                    return [tensors.pop(f"{stem}.{e}.{role}_proj.{part}") for e in range(E)]

                both = zip(one("gate"), one("up"), strict=True)
                tensors[f"{stem}.gate_up_proj{suffix}"] = torch.stack([torch.cat(p) for p in both])
                tensors[f"{stem}.down_proj{suffix}"] = torch.stack(one("down"))

    edit_tensors(folder, edit)


@pytest.fixture
def blocks(make_toy, tmp_path):
    """Return a mixture in fp8 blocks, written expert by expert; 192 rows take two blocks."""
    folder = make_toy("qwen3_moe", **QWEN)
    return convert(folder, tmp_path / "blocks", "fp8_per_block")


def test_scale_rows_of_stacked_gate_and_up_are_the_sum_of_each_parts(blocks):
    expected = logits(load(blocks))
    stack(blocks)
    names = load_file(blocks / "model.safetensors")
    scale = next(v for k, v in names.items() if k.endswith("gate_up_proj_scale_inv"))
    assert scale.shape == (E, 2 + 2, 2)  # 3 blocks would do for 384 rows
    model = load(blocks)
    assert torch.equal(logits(model), expected)
    assert model.quantdock_plan.unused == ()


@pytest.mark.parametrize("width", [I, 80])
def test_no_block_spans_two_experts_or_gate_and_up(make_toy, width):
    """Each part is 1000 times the one before it: a scale of two of them would flush one to 0."""
    folder = make_toy("qwen3_moe", torch.float32, **{**QWEN, "moe_intermediate_size": width})
    stack(folder)
    name = "model.layers.0.mlp.experts.gate_up_proj"

    def grow(tensors: dict[str, torch.Tensor]) -> None:
        for expert in range(E):
            for part in range(2):
                rows = slice(part * width, (part + 1) * width)
                tensors[name][expert, rows] = 1000.0 ** (2 * expert + part)

    edit_tensors(folder, grow)
    model = load(folder, "fp8_per_block")
    experts = model.model.layers[0].mlp.experts
    for expert in range(E):
        w13, _ = experts.quant_method.restore(experts, expert)
        assert len(w13.segments) == 2
        for part, segment in enumerate(w13.segments):
            assert segment.scale.shape == (-(-width // 128), 2)
            values = segment.dequantize() / 1000.0 ** (2 * expert + part)
            assert (values - 1).abs().max() < 0.07


def test_gate_and_up_may_have_scales_that_differ_much(make_toy, tmp_path):
    """Fused shards keep their own scales: nothing is requantized to the larger one."""
    folder = make_toy("qwen3_moe", torch.float32, **QWEN)

    def grow(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if name.endswith("up_proj.weight"):
                tensor.mul_(4096.0)

    edit_tensors(folder, grow)
    target = convert(folder, tmp_path / "out", "fp8_per_tensor")
    model, dense = load(target), load(target, "none")
    experts, plain = (m.model.layers[1].mlp.experts for m in (model, dense))
    for expert in range(E):
        w13, w2 = experts.quant_method.restore(experts, expert)
        assert torch.equal(w13.dequantize(), plain.gate_up_proj[expert])
        assert torch.equal(w2.dequantize(), plain.down_proj[expert])
    assert experts.quant_method.value_steps == ()


@pytest.mark.parametrize(
    "pattern",
    [
        "model.layers.1.mlp.experts",
        "model.layers.1.mlp.experts*",
        "re:model.layers.1.mlp.experts.*",
        None,
    ],
)
@pytest.mark.parametrize("is_stacked", [False, True])
def test_lists_name_experts_together_or_one_by_one(make_toy, tmp_path, pattern, is_stacked):
    """The experts of layer 1 are plain, and an ignore list says so in one of many ways."""
    folder = make_toy("qwen3_moe", **QWEN)
    target = convert(folder, tmp_path / "out", "fp8_per_block", "model.layers.0")
    expected = logits(load(target))
    if is_stacked:
        stack(target)
    one_by_one = [
        f"model.layers.1.mlp.experts.{e}.{role}_proj"
        for e in range(E)
        for role in ("gate", "up", "down")
    ]
    fields = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    listed = [pattern] if pattern else one_by_one
    block = {**fields, "activation_scheme": "dynamic", "modules_to_not_convert": listed}
    edit_config(target, quantization_config=block)
    model = load(target)
    assert torch.equal(logits(model), expected)
    experts = [layer.mlp.experts for layer in model.model.layers]
    assert [isinstance(e, FusedMoE) for e in experts] == [True, False]


def stack_under(joint: str, shape: tuple[int, ...], is_one: bool = False):
    """Return what stores all experts of a Mixtral together, and second scales in this shape.

    Shapes are stated of each, or of all in one tensor.
    """

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        found: dict[tuple[str, str, str], list[torch.Tensor]] = {}
        for name in sorted(name for name in tensors if ".experts." in name):
            stem, _, role, part = name.rsplit(".", 3)
            found.setdefault((stem, role, part), []).append(tensors.pop(name))
        for (stem, role, part), down in found.items():
            if role == "down_proj":
                gate, up = found[stem, "gate_proj", part], found[stem, "up_proj", part]
                rows = torch.stack([torch.cat(pair) for pair in zip(gate, up, strict=True)])
                own = torch.stack(down)
                if part == "weight_shape":
                    rows = torch.stack([rows[:, 0] + rows[:, 2], rows[:, 1]], dim=1)
                    if is_one:
                        rows, own = (torch.tensor([E, *each[0].tolist()]) for each in (rows, own))
                is_second = part == "weight_global_scale"
                tensors[f"{stem}.gate_up_proj{joint}{part}"] = rows
                tensors[f"{stem}.down_proj{joint}{part}"] = own.view(shape) if is_second else own

    return edit


@pytest.mark.parametrize("quantization", [None, "none"])
@pytest.mark.parametrize(("joint", "shape"), [(".", (4,)), (".", (4, 1)), ("_", (4, 1, 1))])
def test_stacked_nvfp4_has_second_scales_of_each_expert(
    shared, tmp_path, joint, shape, quantization
):
    source = shared / "models" / "ct-mixtral-nvfp4a16"
    folder = copy_checkpoint(source, tmp_path / "stacked")
    edit_tensors(folder, stack_under(joint, shape))
    plan = quantdock.explain(folder, "cpu:generic")
    assert not [text for text in plan.warnings if "loading would stop" in text]
    model = load(folder, quantization)
    assert torch.equal(logits(model), logits(load(source, quantization)))
    assert model.quantdock_plan.unused == ()


@pytest.mark.parametrize("quantization", [None, "none"])
@pytest.mark.parametrize(("joint", "is_one"), [(".", True), ("_", True), (".", False)])
def test_stacked_integers_state_one_shape_or_that_of_each(
    shared, tmp_path, joint, is_one, quantization
):
    source = shared / "models" / "ct-mixtral-w4a16"
    folder = copy_checkpoint(source, tmp_path / "stacked")
    edit_tensors(folder, stack_under(joint, (), is_one))
    plan = quantdock.explain(folder, "cpu:generic")
    assert not [text for text in plan.warnings if "loading" in text or "built" in text]
    apart = quantdock.explain(source, "cpu:generic")
    assert plan.totals.bytes_memory == apart.totals.bytes_memory
    model = load(folder, quantization)
    assert torch.equal(logits(model), logits(load(source, quantization)))
    assert model.quantdock_plan.unused == ()


@pytest.mark.parametrize(
    ("name", "shape", "is_one"),
    [
        ("ct-mixtral-w4a16", (), True),
        ("ct-mixtral-w4a16", (), False),
        ("ct-mixtral-nvfp4a16", (4,), False),
    ],
)
def test_stacked_codes_are_decoded_on_disk(shared, tmp_path, name, shape, is_one):
    source = shared / "models" / name
    folder = copy_checkpoint(source, tmp_path / "stacked")
    edit_tensors(folder, stack_under(".", shape, is_one))
    plain = quantdock.convert_checkpoint(folder, tmp_path / "plain", "none").target
    assert torch.equal(logits(load(plain)), logits(load(source, "none")))


def test_a_shape_that_contradicts_stacked_words_is_named(shared, tmp_path):
    folder = copy_checkpoint(shared / "models" / "ct-mixtral-w4a16", tmp_path / "stacked")
    edit_tensors(folder, stack_under(".", (), True))
    name = "model.layers.1.block_sparse_moe.experts.down_proj.weight_shape"
    edit_tensors(folder, lambda tensors: tensors[name].copy_(torch.tensor([E, 128, 264])))
    with pytest.raises(LoadError, match=r"it says \[128, 264\], which takes \[128, 33\] words"):
        load(folder)


def test_one_second_scale_may_be_that_of_all_experts(shared, tmp_path):
    source = shared / "models" / "ct-mixtral-nvfp4a16"
    folders = [copy_checkpoint(source, tmp_path / name) for name in ("apart", "stacked")]

    def same(tensors):
        for name in [n for n in tensors if ".experts." in n and n.endswith("_global_scale")]:
            tensors[name] = torch.tensor([1000.0])

    def one(tensors):
        for name in [n for n in tensors if ".experts." in n and n.endswith("_global_scale")]:
            tensors[name] = torch.tensor(1000.0)

    for folder in folders:
        edit_tensors(folder, same)
    edit_tensors(folders[1], stack_under("_", (4,)))
    edit_tensors(folders[1], one)
    plan = quantdock.explain(folders[1], "cpu:generic")
    assert not [text for text in plan.warnings if "loading would stop" in text]
    assert torch.equal(*(logits(load(folder)) for folder in folders))


@pytest.mark.parametrize("is_apart", [False, True])
def test_gpt_oss_in_quarks_words(shared, tmp_path, is_apart):
    """Codes, scales and biases below the name of each weight, of all experts or of each."""
    source = shared / "models" / "gptoss-mxfp4-even"
    folder = copy_checkpoint(source, tmp_path / "quark")
    names = {"_blocks": "weight", "_scales": "weight_scale", "_bias": "bias"}

    def rename(tensors):
        for name in [name for name in tensors if ".experts." in name]:
            last = next(last for last in names if name.endswith(last))
            stack = tensors.pop(name)
            stack = stack.flatten(2) if last == "_blocks" else stack
            stem, _, weight = name.removesuffix(last).rpartition(".")
            if is_apart:
                each = {
                    f"{stem}.{e}.{weight}.{names[last]}": t.clone() for e, t in enumerate(stack)
                }
                tensors.update(each)
            else:
                tensors[f"{stem}.{weight}.{names[last]}"] = stack

    edit_tensors(folder, rename)
    weight = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
    excluded = ["lm_head", "*self_attn*", "*router*"]
    block = {"quant_method": "quark", "global_quant_config": {"weight": weight}}
    edit_config(folder, quantization_config={**block, "exclude": excluded})
    assert torch.equal(logits(load(folder)), logits(load(source)))
