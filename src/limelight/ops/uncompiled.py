"""Attention calls of compiled functions: run uncompiled while calls are intercepted.

A graph of `torch.compile` makes no Python call that could be intercepted. While calls are
intercepted, compiled functions and modules therefore run uncompiled (PyTorch's stance
"force_eager"): the same numbers, more slowly. The stance is that of the whole process: the first
block sets it and the last one to end restores it, in whichever thread; other threads' compiled
functions run uncompiled meanwhile too. Where the compiler was never loaded, nothing happens.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock

import torch
from torch import nn

from limelight.errors import UnavailableError

WRAPPED = "_orig_mod"
"""The attribute of a compiled module that holds the original one."""

_lock = Lock()
_blocks = 0
_stance: AbstractContextManager[None] | None = None


@contextmanager
def uncompiled() -> Generator[None]:
    """Within the block, what `torch.compile` compiled runs uncompiled."""
    if torch.compiler.is_compiling():
        yield
    elif _is_compiler_loaded():
        _enter()
        try:
            yield
        finally:
            _leave()
    else:
        # Loading the compiler takes a second, which those who compile nothing should not wait for.
        yield
        if _is_compiler_loaded() and _has_compiled():
            warnings.warn(
                "torch.compile was first used within a block that intercepts attention: what was "
                "compiled there ran unseen. Compile before the block, or run the block again",
                RuntimeWarning,
                stacklevel=5,
            )


def uncompiled_module(model: nn.Module) -> nn.Module:
    """The original of a module that `torch.compile` made; any other module itself."""
    inner = model._modules.get(WRAPPED)  # pyright: ignore[reportPrivateUsage]
    return model if inner is None else inner


def _enter() -> None:
    global _blocks, _stance
    with _lock:
        if not _blocks:
            try:
                _stance = torch.compiler.set_stance("force_eager")
            except RuntimeError as error:
                raise UnavailableError(
                    "attention cannot be intercepted within a function that torch.compile "
                    "compiles: leave it uncompiled, or call it inside the block"
                ) from error
        _blocks += 1


def _leave() -> None:
    global _blocks, _stance
    with _lock:
        _blocks -= 1
        if not _blocks and _stance is not None:
            _stance.__exit__(None, None, None)
            _stance = None


def _is_compiler_loaded() -> bool:
    return "torch._dynamo" in sys.modules


def _has_compiled() -> bool:
    from torch._dynamo.eval_frame import cached_backends

    return bool(cached_backends)
