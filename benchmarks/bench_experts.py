"""Unquantized FusedMoE against the experts of transformers: same weights, same tokens, one thread.

Run it with ``python -m benchmarks experts``. A ratio of 2 means twice the time of whichever way of
transformers is faster: its loop ("eager") or its grouped product ("grouped_mm").
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from benchmarks.harness import Candidate, Timing, compare, copies_of, machine
from quantdock.layers import FusedMoE
from quantdock.methods.expert_shape import ExpertShape
from quantdock.methods.experts import ExpertFacts
from quantdock.schemes import LayerFacts

TOKENS = (1, 8, 64, 512)
WAYS = ("eager", "grouped_mm")
DTYPES = (torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The experts of one layer."""

    num_experts: int
    top_k: int
    hidden: int
    intermediate: int

    def __str__(self) -> str:
        sizes = f"H={self.hidden}, I={self.intermediate}"
        return f"{self.num_experts} experts, {self.top_k} a token, {sizes}"


SHAPES = (
    Sizes(num_experts=8, top_k=2, hidden=512, intermediate=1024),
    Sizes(num_experts=64, top_k=8, hidden=512, intermediate=256),
)


def ours(theirs: Qwen3MoeExperts, sizes: Sizes, dtype: torch.dtype) -> FusedMoE:
    """Return our layer with the weights of ``theirs``."""
    facts = LayerFacts(prefix="experts", kind="experts")
    layer = FusedMoE(
        [ExpertFacts(w13=(facts,), w2=(facts,))] * sizes.num_experts,
        ExpertShape(
            num_experts=sizes.num_experts,
            hidden_size=sizes.hidden,
            intermediate_size=sizes.intermediate,
            w13_sizes=(2 * sizes.intermediate,),
        ),
        gate=theirs._apply_gate,
        params_dtype=dtype,
    )
    layer.w13_weight, layer.w2_weight = theirs.gate_up_proj, theirs.down_proj
    return layer


def experts(sizes: Sizes, dtype: torch.dtype, way: str) -> Qwen3MoeExperts:
    """Return the experts of transformers, with random weights."""
    config = Qwen3MoeConfig(
        hidden_size=sizes.hidden,
        moe_intermediate_size=sizes.intermediate,
        num_experts=sizes.num_experts,
        num_experts_per_tok=sizes.top_k,
    )
    config._experts_implementation = way
    made = Qwen3MoeExperts(config).to(dtype)
    for parameter in made.parameters():
        nn.init.normal_(parameter.requires_grad_(False), std=0.03)
    return made


def times(sizes: Sizes, dtype: torch.dtype, tokens: int) -> dict[str, Timing]:
    """Return the time of every way for ``tokens`` tokens."""
    one = 3 * sizes.hidden * sizes.intermediate * sizes.num_experts * dtype.itemsize
    theirs = [experts(sizes, dtype, "eager") for _ in range(copies_of(one))]
    own = [ours(module, sizes, dtype) for module in theirs]
    random = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, sizes.hidden, generator=random).to(dtype)
    routing = torch.rand(tokens, sizes.num_experts, generator=random).softmax(-1)
    weights, ids = routing.topk(sizes.top_k)

    def run(way: str, number: int) -> Tensor:
        module = theirs[number % len(theirs)]
        module.config._experts_implementation = way
        result: Tensor = module(x, ids, weights.to(dtype))
        return result

    def run_ours(number: int) -> Tensor:
        result: Tensor = own[number % len(own)](x, ids, weights.to(dtype))
        return result

    expected = run("eager", 0)
    peers = [
        Candidate(name=way, run=lambda n, way=way: run(way, n), expected=expected, is_peer=True)
        for way in WAYS
    ]
    return compare([*peers, Candidate(name="FusedMoE", run=run_ours, expected=expected)])


@torch.inference_mode()
def main() -> None:
    """Print a table for each shape and dtype."""
    torch.set_num_threads(1)
    console = Console(width=140)
    console.print(f"{date.today()}: {machine()}")
    for sizes in SHAPES:
        for dtype in DTYPES:
            table = Table(title=f"{sizes}, {dtype}", title_justify="left")
            table.add_column("tokens", justify="right")
            names = (*WAYS, "FusedMoE")
            for name in (*(f"{name}, us" for name in names), "FusedMoE / faster of theirs"):
                table.add_column(name, justify="right")
            for tokens in TOKENS:
                found = times(sizes, dtype, tokens)
                theirs = [found[way].smallest for way in WAYS if way in found]
                cells = (f"{1e6 * found[n].smallest:.0f}" if n in found else "-" for n in names)
                # Where both take too long, there is nothing to compare with.
                ratio = f"{found['FusedMoE'].smallest / min(theirs):.2f}" if theirs else "-"
                table.add_row(str(tokens), *cells, ratio)
            console.print(table)


if __name__ == "__main__":
    main()
