"""Workers, threads, pickles: what an engine does with more than one process or model."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import quantdock
from demo.models import TINY_LLAMA
from model_outputs import logits
from quantdock import Policy, dispatch_for, get_platform
from quantdock.errors import NoKernelError
from quantdock.kernel import Problem
from quantdock.schemes import parse_scheme


def work(platform, method):
    """Load in a spawned worker; return its plan, its logits and what the name means there."""
    torch.set_num_threads(1)
    model = quantdock.load(TINY_LLAMA, quantization=method, device="cpu", platform=platform)
    meaning = quantdock.get_quantization_config(method, platform).__name__
    return model.quantdock_plan, logits(model).float().numpy(), meaning


def test_a_spawned_worker_gives_the_same_plan_and_numbers():
    platform = get_platform("cpu")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        plan, numbers, meaning = pool.apply(work, (platform, "fp8_per_block"))
    here = quantdock.load(TINY_LLAMA, quantization="fp8_per_block", device="cpu", platform=platform)
    assert plan == here.quantdock_plan
    assert torch.allclose(torch.from_numpy(numbers), logits(here).float(), rtol=1e-2, atol=1e-2)
    assert meaning == "Fp8PerBlockConfig"


@pytest.mark.parametrize(
    "value",
    [
        get_platform("cpu"),
        Policy(exact=True, prefer="reference"),
        parse_scheme("fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"),
        Problem(scheme=parse_scheme("int8[1x*]"), n=4, k=8, shards=(1, 3)),
        dispatch_for("cpu").kernels,
    ],
    ids=lambda value: type(value).__name__,
)
def test_facts_survive_pickling(value):
    assert pickle.loads(pickle.dumps(value)) == value


def test_errors_survive_pickling():
    problem = Problem(scheme=parse_scheme("int8[1x*]"), n=4, k=8)
    with pytest.raises(NoKernelError) as caught:
        dispatch_for("cpu", Policy(require="no_kernel")).select(problem)
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == str(caught.value)
    assert error.problem == problem


def test_two_models_in_two_threads():
    methods = ("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "none")
    alone = {m: logits(quantdock.load(TINY_LLAMA, quantization=m, device="cpu")) for m in methods}

    def run(method):
        model = quantdock.load(TINY_LLAMA, quantization=method, device="cpu")
        return method, [logits(model) for _ in range(3)]

    with ThreadPoolExecutor(2) as pool:
        for method, results in pool.map(run, methods * 2):
            assert all(torch.equal(result, alone[method]) for result in results)
