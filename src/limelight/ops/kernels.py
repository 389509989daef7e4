"""The C++ kernels, if they were built, and what a call of one needs.

A kernel sees memory, nothing else: code that bypasses torch's dispatcher checks `eager` first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_REVISION = 5
"""of the interface of the kernels; csrc/bindings.cpp has the same number"""

_missing = "the C++ kernels were not built (no C++ compiler was found at install time)"
try:
    from limelight import _kernels as kernels

    if getattr(kernels, "REVISION", None) != _REVISION:
        _missing = "the C++ kernels were built from other sources: install limelight again"
        raise ImportError(_missing)
except ImportError:  # the package works without its kernels, on its PyTorch form
    kernels = None

_C: Any = torch._C  # pyright: ignore[reportPrivateUsage]
_forward_ad: Any = torch.autograd.forward_ad
_PLAIN = (Tensor, torch.nn.Parameter)
# Bound once: looking them up in torch takes longer than calling them.
_is_compiling = torch.compiler.is_compiling
_is_autocast_enabled = torch.is_autocast_enabled
_tracing_state = _C._get_tracing_state
_dispatch_modes, _function_modes = _C._len_torch_dispatch_stack, _C._len_torch_function_stack
_peek_transform = _C._functorch.peek_interpreter_stack


def missing() -> str | None:
    """Why there are no kernels, or None."""
    return _missing if kernels is None else None


def eager(*tensors: Tensor | None) -> bool:
    """Whether a call is plain: no compiler, tracer, transform, mode, autocast, subclass, lazy sign.

    Without tensors: whether the context is plain.
    """
    if _is_compiling():
        return False
    for tensor in tensors:
        if tensor is not None and (type(tensor) not in _PLAIN or tensor.is_neg()):
            return False
    return (
        not _is_autocast_enabled("cpu")
        and _tracing_state() is None
        and _dispatch_modes() == 0
        and _function_modes() == 0
        and _peek_transform() is None
        and _forward_ad._current_level < 0
    )


def transformed() -> bool:
    """Whether torch.compile or a transform is active: tensors may then have no values."""
    return torch.compiler.is_compiling() or _C._functorch.peek_interpreter_stack() is not None


def unsupported_transform() -> str | None:
    """Why the kernels cannot run under the active transform of torch, or None."""
    if torch.compiler.is_compiling():
        return None
    if _forward_ad._current_level >= 0:
        return "the kernels have no forward-mode derivative"
    stack = _C._functorch.get_interpreter_stack() or ()
    if any(transform.key() != _C._functorch.TransformType.Vmap for transform in stack):
        return "the kernels take no transform of torch.func but vmap"
    return None


def outputs(query: Tensor, value: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Empty tensors for the output, in this type, and for the log-sum-exp.

    Where the query is a `b i h d` projection viewed as `b h i d`, the output has the same layout,
    so that joining the heads before the output projection copies nothing.
    """
    b, h, i, _ = query.shape
    e = value.shape[3]
    lse = query.new_empty((b, h, i), dtype=torch.float32)
    if query.stride(1) < query.stride(2):
        return query.new_empty((b, i, h, e), dtype=dtype).transpose(1, 2), lse
    return query.new_empty((b, h, i, e), dtype=dtype), lse


def dense_last(tensor: Tensor) -> Tensor:
    """The tensor, copied if it is lazily negated or its last axis is not dense."""
    tensor = tensor.resolve_neg()
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()
