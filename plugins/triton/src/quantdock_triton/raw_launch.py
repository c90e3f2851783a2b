"""Launching a compiled kernel with numbers and addresses, past the Python of Triton's launcher.

What Triton's launcher does at each call is the same every time: it looks for scratch memory that no
kernel of ours has, calls hooks, and asks the driver whether each address is on the device. The C
function beneath it takes addresses as they are. Its arguments are in another order from version to
version, so those that are known are listed, and any other goes through the launcher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import getclosurevars
from typing import Any

import triton
from triton import knobs
from triton.runtime import driver

_NO_HOOKS = (None, None, None)  # metadata for hooks, and the hooks
_NO_SCRATCH = (None, None)  # of the kernel, and of a profiler
_CUDA_LAUNCHER = "CudaLauncher"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What starts a kernel.

    Attributes:
        call: takes ``before``, the stream, ``after``, and the kernel's arguments and constants.
    """

    call: Callable[..., object]
    before: tuple[Any, ...]
    after: tuple[Any, ...]

    def __call__(self, stream: int, arguments: tuple[Any, ...]) -> None:
        self.call(*self.before, stream, *self.after, *arguments)


def is_watched() -> bool:
    """Return whether somebody wants to hear of launches; those here tell nobody."""
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(getattr(enter, "calls", True) or getattr(leave, "calls", True))


def bind(compiled: Any, grid: Sequence[int], has_descriptors: bool) -> Launch | None:
    """Return what launches ``compiled`` in a grid; None if only Triton itself can.

    Args:
        has_descriptors: some arguments are descriptors, given as ``expanded`` makes them.
    """
    run = compiled.run
    known = _KNOWN.get(triton_version()) if type(run).__name__ == _CUDA_LAUNCHER else None
    if known is not None and not (run.global_scratch_size or run.profile_scratch_size):
        return known(compiled, grid, has_descriptors)
    return None if has_descriptors else _by_launcher(compiled, grid)


def expanded(descriptor: Any, compiled: Any, index: int) -> list[Any]:
    """Return the arguments that stand for the ``index``-th descriptor of a kernel."""
    maker = import_module("triton.backends.nvidia.driver").make_tensordesc_arg
    about = compiled.metadata.tensordesc_meta
    further = () if triton_version() == (3, 6) else (None,)
    made: list[Any] = maker(descriptor, about[index] if about else None, *further)
    return made


def triton_version() -> tuple[int, int]:
    """Return the major and minor version of Triton."""
    major, minor, *_ = triton.__version__.split(".")
    return int(major), int(minor)


def _by_launcher(compiled: Any, grid: Sequence[int]) -> Launch:
    rest = (compiled.function, compiled.packed_metadata, *_NO_HOOKS)
    return Launch(call=compiled.run, before=tuple(grid), after=rest)


def _by_own_module(compiled: Any, grid: Sequence[int], has_descriptors: bool) -> Launch:
    """Return the launch of versions that compile a module of C for each signature."""
    run, call = compiled.run, compiled.run.launch
    if has_descriptors:
        call = getclosurevars(call).nonlocals["launcher"]
    flags = (run.launch_cooperative_grid, run.launch_pdl)
    rest = (compiled.function, *flags, *_NO_SCRATCH, compiled.packed_metadata, *_NO_HOOKS)
    return Launch(call=call, before=tuple(grid), after=rest)


def _by_one_function(compiled: Any, grid: Sequence[int], has_descriptors: bool) -> Launch:
    """Return the launch of versions that have one function for all signatures."""
    run, launch = compiled.run, driver.active.utils.launch
    flags = (run.launch_cooperative_grid, run.launch_pdl)
    packed = compiled.packed_metadata
    about = (run.arg_annotations, run.kernel_signature)
    rest = (compiled.function, *flags, packed, *_NO_HOOKS, *_NO_SCRATCH, *about)
    last = len(grid) + 1 + len(rest)

    def call(*given: Any) -> None:
        launch(*given[:last], given[last:])

    return Launch(call=call, before=tuple(grid), after=rest)


_KNOWN: Mapping[tuple[int, int], Callable[[Any, Sequence[int], bool], Launch]] = {
    (3, 6): _by_own_module,
    (3, 8): _by_one_function,
    (3, 9): _by_one_function,
}
