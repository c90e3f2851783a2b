"""Checks of a kernel's numbers against the oracle, on the device that is in this machine."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any
from unittest import SkipTest

from quantdock.kernel import Kernel, Problem
from quantdock.platform import Platform
from quantdock.problem import INPUT
from quantdock.schemes import Scheme
from quantdock.testing.expert_checks import check_expert_kernel
from quantdock.testing.input_checks import check_input_kernel
from quantdock.testing.kernel_checks import offered
from quantdock.testing.platform_checks import probe_or_skip
from quantdock.testing.sample_weights import sample_weight, unequal_sample
from quantdock.testing.subject import Subject

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.numerics.canonical import CanonicalWeight

M_VALUES = (1, 33)
LEAST_N, LEAST_K = 48, 160  # so that 128 x 128 tiles have ragged edges


class NumericChecks(Subject):
    """Every kernel that this machine can run agrees with the oracle within its tolerance."""

    def test_kernels_agree_with_the_oracle(self) -> None:
        """For each accepted scheme, y is within ``tolerance`` of what the scheme means."""
        with self.loaded() as loaded:
            if not loaded.plugin.platforms:
                raise SkipTest("the plugin owns no platform of its own")
            ran, skipped = 0, []
            for entry in loaded.plugin.platforms:
                platform = probe_or_skip(entry)
                for kernel in offered(loaded, platform):
                    if missing := sorted(kernel.requires - platform.features):
                        skipped.append(f"{kernel.name} needs {missing}, which {platform} lacks")
                        continue
                    accepted = [s for s in self.schemes if not kernel.why_not_scheme(s)]
                    for scheme in accepted:
                        if "experts" in kernel.kinds:
                            dtype = _dtype(kernel, platform)
                            check_expert_kernel(kernel, scheme, platform, dtype)
                        if INPUT in kernel.kinds:
                            check_input_kernel(kernel, scheme, platform, _dtype(kernel, platform))
                        if "linear" in kernel.kinds:
                            check_kernel(kernel, scheme, platform)
                            if scheme.weight.act_order and not kernel.sorts_columns:
                                check_kernel(kernel, scheme, platform, equal_groups=False)
                    ran += len(accepted)
            if not ran:
                raise SkipTest("; ".join(skipped) or "the plugin offers no kernel here")


def check_kernel(
    kernel: Kernel, scheme: Scheme, platform: Platform, *, equal_groups: bool = True
) -> None:
    """Assert that ``kernel`` computes what ``scheme`` means, within its tolerance.

    Args:
        equal_groups: whether those of a weight in act-order are of equal size; a kernel that does
            not say ``sorts_columns`` must take others too.
    """
    import torch

    from quantdock.kernels import oracle
    from quantdock.numerics import torch_dtype

    n = -(-LEAST_N // kernel.n_multiple) * kernel.n_multiple
    k = -(-LEAST_K // kernel.k_multiple) * kernel.k_multiple
    dtype = _dtype(kernel, platform)
    equal = equal_groups if scheme.weight.act_order else None
    problem = Problem(scheme=scheme, n=n, k=k, shards=(n,), dtype=dtype, equal_groups=equal)
    runner = resolve_name(kernel.target)(problem)
    random = torch.Generator().manual_seed(n * k)
    sample, columns = (sample_weight, k) if equal_groups else (unequal_sample, 2 * k)
    weight = sample(torch.randn(n, columns, generator=random), scheme)
    tensors = {name: t.to(platform.device) for name, t in runner.prepare(weight).items()}
    check_restored(kernel, weight, runner.restore(tensors))
    empty = torch.empty(0, k, dtype=torch_dtype(dtype), device=platform.device)
    shape = tuple(runner.apply(tensors, empty, None).shape)
    assert shape == (0, n), f"{kernel.name}: an empty batch of {scheme} gives {shape}"
    for m in M_VALUES:
        x = torch.randn(m, k, generator=random).to(torch_dtype(dtype))
        expected = oracle.linear(scheme, weight, x).float()
        found = runner.apply(tensors, x.to(platform.device), None).cpu()
        assert found.dtype == x.dtype, f"{kernel.name}: {x.dtype} in, {found.dtype} out"
        check_codes(kernel, runner, tensors, x, found)
        error = float((found.float() - expected).norm())
        allowed = kernel.tolerance * float(expected.norm())
        assert error <= allowed, (
            f"{kernel.name} is off by {error:.2e} where {allowed:.2e} is promised: "
            f"{scheme}, M={m}, N={n}, K={k}, {dtype}"
        )


def check_codes(
    kernel: Kernel, runner: Any, tensors: dict[str, Tensor], x: Tensor, expected: Tensor
) -> None:
    """Assert that a kernel that takes codes gives for those of ``x`` what it gives for x."""
    import torch

    from quantdock.kernels.plain_input import PlainInput
    from quantdock.kernels.quantized_input import QuantizedInput
    from quantdock.methods.input_kernel import can_take

    scheme, scale = runner.problem.scheme, tensors.get("input_scale")
    if not can_take(runner, runner.problem):
        return
    codes, made = PlainInput(runner.problem).quantize(x, None if scale is None else scale.cpu())
    device = next(iter(tensors.values())).device
    given = QuantizedInput(
        codes=codes.to(device),
        scale=made.to(device),
        spec=scheme.activation,
        shape=x.shape,
        dtype=x.dtype,
    )
    found = runner.apply_quantized(tensors, given, None).cpu()
    assert torch.equal(found, expected), f"{kernel.name} gives another y for codes of {scheme}"


def _dtype(kernel: Kernel, platform: Platform) -> str:
    """Return the dtype of activations in which errors show best: f32 where the kernel takes it."""
    taken = [d for d in platform.dtypes if kernel.dtypes is None or d in kernel.dtypes]
    if not taken:
        raise SkipTest(f"{kernel.name} takes no dtype of {platform}: {sorted(kernel.dtypes or ())}")
    return "float32" if "float32" in taken else taken[0]


def check_restored(kernel: Kernel, given: CanonicalWeight, found: CanonicalWeight) -> None:
    """Assert that going back from a kernel's layout gave every bit."""
    import torch

    for old, new in zip(given.segments, found.segments, strict=True):
        for name in ("codes", "scale", "zero", "group_index"):
            one, other = getattr(old, name), getattr(new, name)
            same = one is other if one is None or other is None else _bits_equal(one, other.cpu())
            assert same, f"{kernel.name} does not restore the {name} of {old.spec}"
    for name in ("input_scale", "input_zero", "input_multiplier"):
        one, other = getattr(given, name), getattr(found, name)
        if one is not None:
            back = other is not None and torch.equal(one, other.cpu())
            assert back, f"{kernel.name} does not restore the {name}"


def _bits_equal(one: Tensor, other: Tensor) -> bool:
    import torch

    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
