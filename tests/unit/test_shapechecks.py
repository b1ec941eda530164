"""The test suite's shape checks cover heedful's functions and leave Triton kernels alone."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest
import torch

from heedful.layers.scores import dot

KERNEL_MODULES = {
    "argmax_logprob": "argmax_logprob",
    "cross_entropy_kernel": "cross_entropy_inplace",
    "decode_attention": "decode_attention",
    "decode_linear": "decode_linear",
    "gelu": None,
    "short_attention": "short_attention",
}


def test_a_wrong_shape_is_refused() -> None:
    with pytest.raises(Exception, match="dot"):
        dot(torch.zeros(2, 3), torch.zeros(2, 4))


@pytest.mark.parametrize("name", KERNEL_MODULES)
def test_triton_kernels_are_not_wrapped(name: str) -> None:
    """Triton compiles a kernel's source in its module's namespace; a wrapper has another ("tl is not defined")."""
    pytest.importorskip("triton", reason="triton is installed on Linux only")
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    module = import_module(f"heedful.kernels.{name}")
    kernels = [kernel for kernel in vars(module).values() if isinstance(kernel, JITFunction | InterpretedFunction)]
    assert kernels
    for kernel in kernels:
        assert inspect.unwrap(kernel.fn) is kernel.fn
        assert kernel.fn.__globals__ is vars(module)
    entry = KERNEL_MODULES[name]
    assert entry is None or hasattr(getattr(module, entry), "__wrapped__"), "ordinary functions are still checked"
