"""The kernels as registered torch ops, so that autograd, torch.compile and vmap can use them.

    limelight::attend            q, k, v, ...            → out `b h i e`, lse `b h i`
    limelight::attend_backward   the same, out, lse, ... → gradients of q, k, v, bias, slopes, sinks

The ops return `out` in float32 for every type of query, for the sake of gradients: Σ_e out·grad_out
is subtracted from numbers of its own size, so the rounding of `out` to a half type would be most of
what is left. `attend` rounds it.

Everything that varies between calls is an argument; a mask is a program of whole numbers with the
tables that it reads (`mask.Lowered`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from limelight import _kernels
from limelight.errors import LimelightError, OptionError, UnavailableError
from limelight.ops.backends.native_lens import Buffers
from limelight.ops.kernels import dense_last, eager, outputs

_COMMON = (
    "Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? slopes, Tensor? sinks, "
    "Tensor? row_lse, Tensor? seed, Tensor[] tables, int[] program, "
    "float scale, float softcap, float dropout"
)

_TENSORS = 8
"""How many of the arguments, the first ones, are single tensors: query to seed."""

_library = torch.library.Library("limelight", "DEF")
_library.define(f"attend({_COMMON}) -> (Tensor out, Tensor lse)")
_library.define(
    f"attend_backward({_COMMON}, Tensor out, Tensor lse, Tensor grad_out, Tensor? grad_lse, "
    "bool[] wanted) -> (Tensor query, Tensor key, Tensor value, Tensor bias, Tensor slopes, "
    "Tensor sinks)"
)


def forward(
    query: Tensor, key: Tensor, value: Tensor,
    bias: Tensor | None, slopes: Tensor | None, sinks: Tensor | None, row_lse: Tensor | None,
    seed: Tensor | None, tables: Sequence[Tensor], program: Sequence[int],
    scale: float, softcap: float, dropout: float,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Run the kernel, with an output in float32 or in the type of the query."""
    query, key, value = dense_last(query), dense_last(key), dense_last(value)
    out, lse = outputs(query, value, dtype)
    try:
        _kernels.forward(
            query, key, value, bias, _dense(slopes), _dense(sinks), _dense(row_lse),
            tables, program, scale, softcap, dropout, _seed_number(seed), out, lse,
        )  # fmt: skip
    except ValueError as error:
        raise _as_limelight_error(error) from None
    return out, lse


def _as_limelight_error(error: ValueError) -> LimelightError:
    """The error of the kernel, which alone can check some arguments, such as traced lengths."""
    return (
        error
        if isinstance(error, LimelightError)
        else OptionError(str(error).removeprefix("the mask program is damaged: "))
    )


def _dense(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous().resolve_neg()


def _seed_number(seed: Tensor | None) -> int:
    return 0 if seed is None else int(seed)


def _fake(query: Tensor, _key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return outputs(dense_last(query), value, torch.float32)


def _gradients(
    query: Tensor, key: Tensor, value: Tensor,
    bias: Tensor | None, slopes: Tensor | None, sinks: Tensor | None, wanted: Sequence[bool],
) -> list[Tensor]:  # fmt: skip
    """Tensors for the six gradients; that of a tensor which is None or unwanted has size 0."""
    grads = [torch.empty_like(x, memory_format=torch.preserve_format) for x in (query, key, value)]
    grads = [
        grad if grad.stride(-1) == 1 else torch.empty(grad.shape, dtype=grad.dtype)
        for grad in grads
    ]
    for table, needed in zip((bias, slopes, sinks), wanted[3:], strict=True):
        if table is None or not needed:
            grads.append(query.new_empty((0,), dtype=torch.float32))
        else:
            grads.append(table.new_zeros(table.shape, dtype=torch.float32))
    return grads


def backward(
    query: Tensor, key: Tensor, value: Tensor,
    bias: Tensor | None, slopes: Tensor | None, sinks: Tensor | None, row_lse: Tensor | None,
    seed: Tensor | None, tables: Sequence[Tensor], program: Sequence[int],
    scale: float, softcap: float, dropout: float,
    out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor | None, wanted: Sequence[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Run the backward kernel from the saved output and log-sum-exp."""
    query, key, value = dense_last(query), dense_last(key), dense_last(value)
    grads = _gradients(query, key, value, bias, slopes, sinks, wanted)
    _kernels.backward(
        query, key, value, bias, _dense(slopes), _dense(sinks), _dense(row_lse),
        tables, program, scale, softcap, dropout, _seed_number(seed),
        out, lse, dense_last(grad_out), _dense(grad_lse),
        *grads[:3], *(grad if grad.numel() else None for grad in grads[3:]),
    )  # fmt: skip
    return tuple(grads)


def _fake_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    slopes: Tensor | None,
    sinks: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:
    tensors = dense_last(query), dense_last(key), dense_last(value)
    return tuple(_gradients(*tensors, bias, slopes, sinks, rest[-1]))


# --- autograd -------------------------------------------------------------------------------------


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, tables, program, scale, softcap, dropout = inputs
    ctx.tables, ctx.rest = len(tables), (program, scale, softcap, dropout)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output, *tables)


def _input_gradients(
    ctx: Any,
    op: Callable[..., tuple[Tensor, ...]],
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    needed: Sequence[Any],
) -> list[Tensor | None]:
    """The gradients of query, key, value, bias, slopes, sinks and row_lse, None if not needed."""
    saved = ctx.saved_tensors  # read once: gradient checkpointing allows no second access
    inputs, (out, lse, *tables) = saved[:_TENSORS], saved[_TENSORS:]
    wanted = [bool(flag) for flag in needed[:6]]
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    computed = op(*inputs, tables, *ctx.rest, out, lse, grad_out, grad_lse, wanted)
    grads = [grad if needs else None for grad, needs in zip(computed, wanted, strict=True)]
    bias = inputs[3]
    if bias is not None and grads[3] is not None:
        grads[3] = grads[3].to(bias.dtype)
    # out_i = Σ_j exp(s_ij − row_lse_i) · v_j
    grads.append(-(out * grad_out).sum(-1).double() if needed[6] else None)
    return grads


def _differentiate(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    op, needed = torch.ops.limelight.attend_backward, ctx.needs_input_grad
    return (
        *_input_gradients(ctx, op, grad_out, grad_lse, needed),
        None,  # the seed
        [None] * ctx.tables,
        # autograd takes an empty program for an empty list of tensors and expects one back
        *[[] if argument == [] else None for argument in ctx.rest],
    )


def _refuse(_ctx: Any, *_grads: Any) -> tuple[Any, ...]:
    raise UnavailableError(
        "impl='native' has no second-order gradients: use attend(..., impl='reference')"
    )


def _forward_with_lens(
    buffers: Buffers, *inputs: Any, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Run the kernel with a lens, which fills the buffers."""
    query, key, value, bias, slopes, sinks, row_lse, seed, tables, program, *options = inputs
    query, key, value = dense_last(query), dense_last(key), dense_last(value)
    scale, softcap, dropout = options
    out, lse = outputs(query, value, dtype)
    try:
        _kernels.lens_forward(
            query, key, value, bias, _dense(slopes), _dense(sinks), _dense(row_lse),
            tables, program, scale, softcap, dropout, _seed_number(seed), out, lse,
            buffers.rows, buffers.pooled,
        )  # fmt: skip
    except ValueError as error:
        raise _as_limelight_error(error) from None
    return out, lse


class AttendWithLens(torch.autograd.Function):
    """Attention with a lens: one sweep computes the output and the statistics."""

    @staticmethod
    def forward(ctx: Any, buffers: Buffers, *inputs: Any) -> tuple[Tensor, Tensor]:
        output = _forward_with_lens(buffers, *inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        op = torch.ops.limelight.attend_backward if torch.is_grad_enabled() else backward
        needed = ctx.needs_input_grad[1:]
        inputs = _input_gradients(ctx, op, grads[0], grads[1], needed)
        return (None, *inputs, *[None] * (2 + len(ctx.rest)))


class Attend(torch.autograd.Function):
    """Attention in plain eager calls, without the dispatcher, whose path through Python is slow.

    Forward and backward of a call of 8 tokens take 180 µs of CPU time instead of 480.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        output = forward(*inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        # With create_graph=True the registered op is what refuses second-order gradients.
        op = torch.ops.limelight.attend_backward if torch.is_grad_enabled() else backward
        inputs = _input_gradients(ctx, op, grads[0], grads[1], ctx.needs_input_grad)
        return (*inputs, *[None] * (2 + len(ctx.rest)))


# --- vmap -----------------------------------------------------------------------------------------


def _one_by_one(op: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Any]:
    """Under vmap each slice is a call of its own: correct for every argument, if not fast."""

    def rule(info: Any, axes: tuple[Any, ...], *args: Any) -> tuple[Any, tuple[int, ...]]:
        def part(arg: Any, axis: Any, t: int) -> Any:
            if isinstance(axis, (list, tuple)):
                return [part(a, x, t) for a, x in zip(arg, axis, strict=True)]
            return arg if axis is None else arg.select(axis, t)

        results = [
            op(*(part(arg, axis, t) for arg, axis in zip(args, axes, strict=True)))
            for t in range(info.batch_size)
        ]
        stacked = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)

    return rule


_library.impl("attend", forward, "CPU")
_library.impl("attend_backward", backward, "CPU")
torch.library.register_fake("limelight::attend", _fake, lib=_library)
torch.library.register_fake("limelight::attend_backward", _fake_backward, lib=_library)
torch.library.register_autograd(
    "limelight::attend", _differentiate, setup_context=_save, lib=_library
)
torch.library.register_autograd("limelight::attend_backward", _refuse, lib=_library)
torch.library.register_vmap(
    "limelight::attend", _one_by_one(torch.ops.limelight.attend), lib=_library
)
torch.library.register_vmap(
    "limelight::attend_backward", _one_by_one(torch.ops.limelight.attend_backward), lib=_library
)


def attend_with_lens(buffers: Buffers, *call: Any) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of a plain call, and the statistics in the buffers."""
    dtype = call[0].dtype
    if not _differentiated(call):
        return _forward_with_lens(buffers, *call, dtype=dtype)
    out, lse = AttendWithLens.apply(buffers, *call)
    return out.to(dtype), lse


def attend(*call: Any) -> tuple[Tensor, Tensor]:
    """`limelight::attend`, by the shortest path that serves the call."""
    dtype = call[0].dtype
    if not eager(*call[:_TENSORS]):
        out, lse = torch.ops.limelight.attend(*call)
    elif _differentiated(call):
        out, lse = Attend.apply(*call)
    else:
        return forward(*call, dtype=dtype)
    return out.to(dtype), lse


def _differentiated(call: tuple[Any, ...]) -> bool:
    """Whether autograd has to record the call."""
    return torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in call[:_TENSORS]
    )
