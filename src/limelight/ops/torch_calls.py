"""PyTorch's own attention calls, handed to the seam by a torch function mode.

Within the mode our drop-ins compute `F.scaled_dot_product_attention` and `nn.MultiheadAttention`.
The mode is called before PyTorch chooses how to compute, so the fused inference path of
`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` is not taken. Nothing is patched; modes
belong to the thread that entered them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import cache
from types import FunctionType, MethodType
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from limelight.errors import LimelightError, OptionError, UnavailableError
from limelight.ops.calls import AttentionCall, computing, intercepted, run, run_seen
from limelight.ops.lens.spec import Lens
from limelight.ops.masks.band import causal
from limelight.ops.sdpa import scaled_dot_product_attention
from limelight.ops.uncompiled import WRAPPED

_Module = TypeVar("_Module", bound=nn.Module)


class TorchCalls(TorchFunctionMode):
    """Hands PyTorch's attention calls to our drop-ins, all others on to PyTorch."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        drop_in = _DROP_INS.get(func)
        if drop_in is None or computing() or _is_nested(args, options):
            return func(*args, **options)
        return drop_in(func, args, options)


class InterceptedTorchCalls(TorchCalls):
    """The same in contexts that intercept calls only: a mode applies to all tasks of a thread."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if not intercepted():
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


@contextmanager
def serving() -> Generator[None]:
    """Within the block, limelight's kernels compute PyTorch's attention calls.

    Every `F.scaled_dot_product_attention` and `nn.MultiheadAttention` that this thread runs, in any
    module: the same numbers within rounding, at our speed. What limelight does not serve (nested
    tensors, requested weights, other devices' types) is computed by PyTorch. Functions that
    `torch.compile` compiled are compiled once more, with limelight's kernels in the graph in place
    of `F.scaled_dot_product_attention`; `nn.MultiheadAttention` stays PyTorch's in them.

    >>> import torch, limelight as ll
    >>> layer = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    >>> x = torch.randn(2, 5, 16)
    >>> with torch.no_grad():
    ...     theirs = layer(x)
    ...     with ll.serving():
    ...         ours = layer(x)
    >>> torch.allclose(ours, theirs, atol=1e-5)
    True
    """
    with TorchCalls():
        yield


def serve(module: _Module) -> _Module:
    """Let limelight's kernels compute a module's attention from now on; returns the module.

    As `serving()` around each of its forward passes, in whichever thread runs it.
    Parameters, state dict, hooks and methods such as `generate` are unchanged; serving it again
    changes nothing; `del module.forward` undoes it.

    >>> import torch, limelight as ll
    >>> layer = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    >>> x = torch.randn(2, 5, 16)
    >>> with torch.no_grad():
    ...     theirs = layer(x)
    ...     ours = ll.serve(layer)(x)
    >>> torch.allclose(ours, theirs, atol=1e-5)
    True
    """
    if not isinstance(module, nn.Module):
        raise OptionError(f"module must be a torch.nn.Module, found {type(module).__name__}")
    if isinstance(module, torch.jit.ScriptModule) or hasattr(module, WRAPPED):
        raise UnavailableError(
            "a compiled or scripted module has a graph of its own, which cannot be served: serve "
            "the module that it was made from"
        )
    forward = vars(module).get("forward")
    if not isinstance(forward, _Served):
        module.forward = _Served(module, forward)
    return module


class _Served:
    """The forward method of a served module: an object, so that the module can be pickled."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any] | None) -> None:
        self._module, self._instance_forward = module, forward

    @property
    def _forward(self) -> Callable[..., Any]:
        """The forward set on the module itself, or that of its class."""
        if self._instance_forward is not None:
            return self._instance_forward
        return MethodType(type(self._module).forward, self._module)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._forward)

    def __call__(self, *args: Any, **options: Any) -> Any:
        with TorchCalls():
            return self._forward(*args, **options)


def torch_calls_of(model: nn.Module) -> type[InterceptedTorchCalls] | None:
    """The mode to enter while a model runs; None where no module of it calls PyTorch's attention.

    A mode sees every call of PyTorch, which slows down models that make many small ones.
    """
    types = {type(module) for module in model.modules()}
    return InterceptedTorchCalls if any(map(_may_call_torch, types)) else None


@cache
def _may_call_torch(module_type: type[nn.Module]) -> bool:
    name = module_type.__module__
    if name.startswith("torch.nn.modules."):
        return name in ("torch.nn.modules.activation", "torch.nn.modules.transformer")
    if name.startswith("limelight."):
        return False
    if not name.startswith("transformers."):
        return True
    try:
        source = inspect.getsource(sys.modules[name])
        return (
            any(function.__name__ in source for function in _DROP_INS)
            or "MultiheadAttention" in source
        )
    except (OSError, KeyError):
        return True


def _sdpa(func: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
    if intercepted():
        return scaled_dot_product_attention(*args, **options)
    try:
        return scaled_dot_product_attention(*args, **options)
    except LimelightError:  # only PyTorch serves the call, or it raises PyTorch's own error
        return func(*args, **options)


def _multi_head(
    func: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    needs_weights = options.get("need_weights", True)
    if not intercepted():
        if needs_weights or torch.compiler.is_compiling():
            return func(*args, **options)
        return _multi_head_by(scaled_dot_product_attention, args, options)
    if not needs_weights:
        return _multi_head_by(scaled_dot_product_attention, args, options)
    weights: list[Tensor] = []

    # Called by position; PyTorch has made a float tensor of the mask.
    def attention(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float, is_causal: bool
    ) -> Tensor:
        mask = causal(diagonal=0) if is_causal else None
        output, used = _with_weights(AttentionCall(q, k, v, mask, bias, dropout=dropout))
        weights.append(used)
        return output

    # Where weights are requested, PyTorch applies the mask, whatever the hint says.
    hint = options.get("is_causal", False) and options.get("attn_mask") is None
    output, _ = _multi_head_by(
        attention, args, {**options, "need_weights": False, "is_causal": hint}
    )
    used = weights[0].mean(1) if options.get("average_attn_weights", True) else weights[0]
    return output, used if output.ndim == 3 else used[0]


def _multi_head_by(
    attention: Callable[..., Tensor], args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """PyTorch's own `multi_head_attention_forward`, with another attention function."""
    names = {
        **F.__dict__,
        "scaled_dot_product_attention": attention,
        "has_torch_function": _never,
    }
    original = F.multi_head_attention_forward
    forward = FunctionType(
        original.__code__, names, original.__name__, original.__defaults__, original.__closure__
    )
    forward.__kwdefaults__ = original.__kwdefaults__
    return forward(*args, **options)


def _never(_: object) -> bool:
    return False


def _with_weights(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """The output, and the weights that made it: after dropout, with their gradients."""
    tensors = call.query, call.key, call.value
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if not needs_grad and not call.dropout:
        output, seen = run_seen(call, Lens())
        return output, seen.dense().to(output.dtype)
    # Attending to the identity matrix gives the weights, with the same ones dropped.
    size, channels = call.key.shape[2], call.value.shape[3]
    eye = torch.eye(size, dtype=call.value.dtype, device=call.value.device)
    both = torch.cat((call.value, eye.expand(*call.value.shape[:2], -1, -1)), dim=-1)
    joint = run(call.replace(value=both))
    return joint[..., :channels], joint[..., channels:]


def _is_nested(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    tensors = (*args, *options.values())
    return any(isinstance(tensor, Tensor) and tensor.is_nested for tensor in tensors)


_DROP_INS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: _sdpa,
    F.multi_head_attention_forward: _multi_head,
}
