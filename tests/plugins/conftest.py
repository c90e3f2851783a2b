"""The plugins of this checkout can be imported whether or not they are installed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

for source in sorted((Path(__file__).resolve().parents[2] / "plugins").glob("*/src")):
    if str(source) not in sys.path:
        sys.path.append(str(source))


def reduce_by_halves(operation, inputs):
    """Return what Triton's interpreter makes of a reduction, without a call for every value."""
    inputs, axis = operation.unravel(inputs, operation.axis)
    blocks = [tensor.handle.data for tensor in inputs]
    while blocks[0].shape[axis] > 1:
        halves = zip(*(np.split(block, 2, axis) for block in blocks), strict=True)
        both = [
            operation.to_tensor(half, tensor.dtype)
            for side in halves
            for half, tensor in zip(side, inputs, strict=True)
        ]
        made = operation.combine_fn.fn(*both)
        blocks = [part.handle.data for part in (made if isinstance(made, tuple) else (made,))]
    if not operation.keep_dims:
        blocks = [block.squeeze(axis) for block in blocks]
    return [
        operation.to_tensor(block, tensor.dtype)
        for block, tensor in zip(blocks, inputs, strict=True)
    ]


def patch_once(patch, scope):
    """Return Triton's ``patch`` of what a function sees of the language, unless that is done."""
    import triton.language as tl

    def patched(function):
        spaces = [v for v in function.__globals__.values() if v is tl or v is tl.core]
        if any(tl.core.is_builtin(space.load) for space in spaces):
            return patch(function)
        return scope()

    return patched


@pytest.fixture(scope="module")
def interpreted():
    """Return what imports modules of Triton kernels anew, for Triton's interpreter on the CPU.

    The interpreter exchanges parts of Triton's language and leaves some of its own behind.
    """
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpretedFunction, ReduceOps
    from triton.runtime.jit import JITFunction

    def forget():
        names = [n for n in sys.modules if n.startswith(("quantdock_triton", "quantdock_cuda"))]
        return {name: sys.modules.pop(name) for name in names}

    descriptor = tl.core.tensor_descriptor_base
    spaces = (tl, tl.core, tl.math, tl.standard, tl.tensor, descriptor)
    language = [(space, dict(vars(space))) for space in spaces]
    known = forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setattr(ReduceOps, "generic_reduce", reduce_by_halves)
        once = patch_once(interpreter._patch_lang, interpreter._LangPatchScope)
        patch.setattr(interpreter, "_patch_lang", once)
        for module in (tl, tl.standard):  # what Triton itself wrote for kernels
            for name, value in list(vars(module).items()):
                if isinstance(value, JITFunction):
                    setattr(module, name, InterpretedFunction(value.fn))
        yield import_module
    forget()
    sys.modules.update(known)
    for space, contents in language:
        for name, value in contents.items():
            if vars(space).get(name) is not value:
                setattr(space, name, value)
