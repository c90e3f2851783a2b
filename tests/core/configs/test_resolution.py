"""Which scheme of a shorthand a platform runs."""

from __future__ import annotations

import pytest

from quantdock.configs.resolution import resolve
from quantdock.dispatch import Dispatch
from quantdock.kernel import Kernel, Policy, Substitution
from quantdock.platform import Platform
from quantdock.schemes import SchemeSet, SpecSet
from quantdock.schemes.shorthands import SHORTHANDS

CHANNEL, BLOCK, TENSOR, TENSORS = SHORTHANDS["fp8"]
PLATFORM = Platform(name="toy", arch="t1", device="toy", features=frozenset({"fp8"}))
ANY = SchemeSet(weight=SpecSet(), activation=SpecSet())
REFERENCE = Kernel(
    name="reference", target="x:X", accepts=ANY, is_reference=True,
    kinds=frozenset({"linear", "experts"}),
)  # fmt: skip


def kernel(name: str, granularity: str, k_multiple: int = 1, needs: str = "fp8") -> Kernel:
    weight = SpecSet(granularities=frozenset({granularity}))
    return Kernel(
        name=name,
        target="x:X",
        accepts=SchemeSet(weight=weight, activation=SpecSet()),
        requires=frozenset({needs}),
        k_multiple=k_multiple,
    )


def dispatch(*kernels: Kernel, policy: Policy | None = None) -> Dispatch:
    return Dispatch(platform=PLATFORM, kernels=(*kernels, REFERENCE), policy=policy or Policy())


def test_without_a_platform_the_first_stands() -> None:
    found = resolve("fp8", SHORTHANDS["fp8"], None)
    assert (found.scheme, found.because) == (CHANNEL, f"fp8 is {CHANNEL}")


def test_first_scheme_with_a_kernel_of_its_own_wins() -> None:
    both = dispatch(kernel("tensors", "tensor"), kernel("blocks", "block"))
    found = resolve("fp8", SHORTHANDS["fp8"], both)
    assert found.scheme == BLOCK
    assert found.because == f"fp8 is {BLOCK} on toy:t1, which has a kernel for it"
    assert resolve("fp8_per_tensor", SHORTHANDS["fp8_per_tensor"], both).scheme == TENSOR


def test_reference_kernels_decide_nothing() -> None:
    found = resolve("fp8", SHORTHANDS["fp8"], dispatch(kernel("b", "block", needs="absent")))
    assert found.scheme == CHANNEL
    assert found.because == (
        f"fp8 is {CHANNEL}, the first of its 4 schemes; toy:t1 has no kernel for any as it is"
    )


@pytest.mark.parametrize(
    "named",
    [{"require": "reference"}, {"prefer": "reference"}, {"require": "weights"}, {"require": "no"}],
    ids=str,
)
def test_a_named_kernel_that_runs_none_of_them_changes_no_meaning(named: dict[str, str]) -> None:
    weights = Kernel(name="weights", target="x:X", accepts=SchemeSet(weight=SpecSet()))
    found = resolve(
        "fp8", SHORTHANDS["fp8"], dispatch(kernel("b", "block"), weights, policy=Policy(**named))
    )
    assert found.because == f"fp8 is {BLOCK} on toy:t1, which has a kernel for it"


def test_a_named_kernel_that_runs_one_of_them_decides() -> None:
    both = kernel("channels", "channel"), kernel("tensors", "tensor")
    asked = dispatch(*both, policy=Policy(require="tensors"))
    assert resolve("fp8", SHORTHANDS["fp8"], asked).scheme == TENSOR


def test_substitutions_decide_nothing() -> None:
    swap = Substitution(
        name="w", source=ANY, change="weight_only", why="no fp8 unit", accuracy="better"
    )
    weight_only = Kernel(name="w8a16", target="x:X", accepts=SchemeSet(weight=SpecSet()))
    toy = Dispatch(platform=PLATFORM, kernels=(weight_only,), substitutions=(swap,))
    assert resolve("fp8", SHORTHANDS["fp8"], toy).scheme == CHANNEL


def test_shape_moves_a_layer_only_where_another_scheme_fits() -> None:
    both = dispatch(kernel("channels", "channel", 16), kernel("blocks", "block"))
    assert resolve("fp8", SHORTHANDS["fp8"], both, n=32, k=32).scheme == CHANNEL
    assert resolve("fp8", SHORTHANDS["fp8"], both, n=32, k=40).scheme == BLOCK
    one = dispatch(kernel("blocks", "block", 128))
    assert resolve("fp8", SHORTHANDS["fp8"], one, n=32, k=40).scheme == BLOCK


def test_kinds_without_kernels_follow_the_linear_layers() -> None:
    one = dispatch(kernel("blocks", "block"))
    assert resolve("fp8", SHORTHANDS["fp8"], one, kind="experts").scheme == BLOCK


def test_last_resort_is_one_scale_for_all_tokens() -> None:
    activation = SpecSet(granularities=frozenset({"tensor"}))
    only = Kernel(
        name="t", target="x:X", accepts=SchemeSet(weight=SpecSet(), activation=activation)
    )
    assert resolve("fp8", SHORTHANDS["fp8"], dispatch(only)).scheme == TENSORS
