"""Batch-invariant layers: rows are what they are alone, whatever rows are beside them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import toy_llama
from quantdock import dispatch_for
from quantdock.errors import NoKernelError
from quantdock.kernel import Kernel, Policy, Problem
from quantdock.kernels.row_by_row import RowByRow, kernel_of
from quantdock.numerics import CanonicalWeight
from quantdock.problem import ExpertProblem, ExpertSet
from quantdock.schemes import SchemeSet, SpecSet, parse_scheme

ALONE = dispatch_for("cpu", Policy(batch_invariant=True))
ANY = SchemeSet(weight=SpecSet())


class Odd:
    """A kernel whose rows depend on how many there are."""

    optional: Mapping[str, float] = {"weight_nan": 0.0}

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def apply(self, tensors: Mapping[str, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
        return x.sum(-1, keepdim=True) * x.shape[0]


@pytest.mark.parametrize(
    "scheme",
    ["fp8_e4m3[128x128]", "fp8_e4m3[1x*] x fp8_e4m3[*x*]:dynamic", "int4[1x64]"],
)
def test_rows_are_what_they_are_alone(
    scheme: str, make_weight: Callable[..., CanonicalWeight]
) -> None:
    weight = make_weight(scheme, [96, 160], 256)
    selection = ALONE.select(
        Problem(scheme=parse_scheme(scheme), n=256, k=256, shards=(96, 160), dtype="float32")
    )
    kernel = kernel_of(selection)
    tensors = kernel.prepare(weight)
    x = torch.randn(2, 9, 256).transpose(0, 1)  # rows that are not side by side
    bias = torch.randn(256)
    result = kernel.apply(tensors, x, bias)
    assert result.shape == (9, 2, 256)
    alone = [kernel.apply(tensors, row.clone()[None], bias)[0] for row in x.reshape(-1, 256)]
    assert torch.equal(result.reshape(-1, 256), torch.stack(alone))
    assert kernel.apply(tensors, x[:0], bias).shape == (0, 2, 256)
    assert f"{selection.kernel.name} computes rows one by one" in " ".join(selection.warnings)


def test_a_kernel_that_promises_it_gets_all_rows() -> None:
    kernel = Kernel(name="odd", target="x:Odd", accepts=ANY, is_batch_invariant=True)
    dispatch = replace(ALONE, kernels=(kernel,))
    selection = dispatch.select(Problem(scheme=parse_scheme("int8[1x*]"), n=1, k=4))
    assert selection.warnings == ()
    assert selection.problem.batch_invariant


def test_only_what_depends_on_the_number_of_rows_changes() -> None:
    alone = RowByRow(Odd(Problem(scheme=parse_scheme("int8[1x*]"))))
    x = torch.arange(6.0).view(3, 2)
    assert alone.apply({}, x, None).tolist() == [[1.0], [5.0], [9.0]]
    assert alone.optional == {"weight_nan": 0.0}
    assert not hasattr(alone, "apply_partial")
    for copied in (deepcopy(alone), pickle.loads(pickle.dumps(alone))):
        assert copied.apply({}, x, None).tolist() == [[1.0], [5.0], [9.0]]


def test_experts_that_run_whole_must_promise_it() -> None:
    scheme = parse_scheme("int8[1x*]")
    experts = ExpertProblem(w2=scheme, num_experts=2, intermediate=4, activation="silu")
    whole = Problem(scheme=scheme, n=8, k=4, kind="experts", experts=experts)
    kernel = Kernel(
        name="fused",
        target="x:Y",
        accepts=ANY,
        kinds=frozenset({"experts"}),
        experts=ExpertSet(activations=frozenset({"silu"})),
    )
    with pytest.raises(NoKernelError, match="cannot compute each token as if it were alone"):
        replace(ALONE, kernels=(kernel,)).select(whole)
    assert replace(ALONE, kernels=(kernel,), policy=Policy()).select(whole).kernel is kernel


def test_a_model_is_loaded_so_when_it_is_asked(tmp_path: Path) -> None:
    toy_llama.write(tmp_path, toy_llama.llama())
    model = toy_llama.load(tmp_path, "fp8", batch_invariant=True)
    name = "model.layers.0.mlp.down_proj"
    x = torch.randn(5, model.config.intermediate_size)
    together = toy_llama.run(model, name, x)
    assert torch.equal(together, torch.cat([toy_llama.run(model, name, row[None]) for row in x]))
    plan = next(p for p in model.quantdock_plan.layers if p.prefix == name)
    assert any("one by one" in warning for warning in plan.warnings)
