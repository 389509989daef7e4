"""The one operation: exact attention, by the first implementation that serves a call."""

from __future__ import annotations

from typing import Any, cast, overload

import torch
from torch import Tensor

from limelight.errors import UnavailableError
from limelight.ops.backends import native
from limelight.ops.backends.protocol import Extras
from limelight.ops.backends.registry import Choice, Implementation, Name, choose
from limelight.ops.bias import Alibi
from limelight.ops.kernels import transformed
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens, Statistics, check_lens
from limelight.ops.masks.mask import Mask
from limelight.ops.problem import Problem, check_problem, exceeds, wide_type, widest


@overload
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | Alibi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    lens: None = None,
    impl: Implementation = "auto",
) -> Tensor: ...


@overload
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | Alibi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    lens: Lens,
    impl: Implementation = "auto",
) -> tuple[Tensor, Seen]: ...


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | Alibi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    lens: Lens | None = None,
    impl: Implementation = "auto",
) -> Tensor | tuple[Tensor, Seen]:
    """Exact attention: each query gets the mean of the values, weighted by how well keys match it.

        output_i = Σ_j weights_ij · value_j
        weights_i = softmax_j(scale · query_i · key_j)

    Args:
        query: `b h i d`; any strides as long as the last axis is dense.
        key: `b g j d`, where g divides h: grouped heads share keys (GQA, MQA).
        value: `b g j e`; e may differ from d.
        mask: a mask value such as `causal() & window(256)`, or a bool tensor that broadcasts to
            `b h i j`. True = may attend. A row that may attend to nothing gives zeros.
        bias: added to the scaled scores: a tensor that broadcasts to `b h i j`, or `alibi(heads)`.
        scale: 1/√d unless given.
        softcap: scores become cap·tanh(score/cap) before bias and mask (Gemma 2).
        dropout: the probability that a weight is dropped, drawn from torch's default generator.
        lens: what to record about the weights; the result is then `(output, seen)`.
        impl: "auto" picks (`explain_choice` says what and why); a backend requested by name,
            "native", "torch", "tiled" or "reference", serves or raises.

    >>> import torch, limelight as ll
    >>> q = k = v = torch.eye(2).view(1, 1, 2, 2)
    >>> ll.attend(q, k, v, scale=1.0, mask=ll.causal())
    tensor([[[[1.0000, 0.0000],
              [0.2689, 0.7311]]]])
    """
    no_dropout = isinstance(dropout, float | int) and dropout == 0
    if bias is None and softcap is None and no_dropout and lens is None:
        program = () if mask is None else mask.program() if isinstance(mask, Mask) else None
        if program is not None and isinstance(impl, str) and impl in ("auto", "native"):
            output = native.attend_plain(query, key, value, program, scale)
            if output is not None:
                return output
    problem = prepare(
        query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap, dropout=dropout
    )
    if lens is not None:
        return compute_with_lens(problem, lens, impl)
    return choose(problem, impl, Extras())[0].attend(problem)[0]


def prepare(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Problem:
    """The call as the implementations take it, or a LimelightError."""
    return check_problem(autocast(query), autocast(key), autocast(value), **options)


def autocast(tensor: Tensor) -> Tensor:
    """The tensor in the type that torch.autocast casts the inputs of attention to."""
    return tensor.to(autocast_type(tensor)) if isinstance(tensor, Tensor) else tensor


def autocast_type(tensor: Tensor) -> torch.dtype:
    """The type that torch.autocast, if it is enabled, casts this input of attention to."""
    device = tensor.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return tensor.dtype
    is_cast = tensor.is_floating_point() and tensor.dtype != torch.float64
    return torch.get_autocast_dtype(device) if is_cast else tensor.dtype


def compute(problem: Problem, impl: Implementation = "auto") -> tuple[Tensor, Tensor]:
    """The output of a checked problem, and what normalises its rows."""
    output, lse = choose(problem, impl, Extras(lse=True))[0].attend(problem)
    assert lse is not None
    return output, lse


def normaliser(problem: Problem) -> Tensor:
    """What normalises the rows of a checked problem: `b h i`, float64 where the device has it."""
    lse = compute(problem)[1]
    if transformed() or not exceeds(lse, native.COARSE):
        return widest(lse)
    lse = compute(problem, "tiled")[1]
    if exceeds(lse, _LOSES_SUM):
        raise UnavailableError(
            f"the scores reach {float(lse.nan_to_num(0.0, 0.0, 0.0).abs().max()):.3g}, where even "
            "float64 has no digits left for what normalises a row: mask instead, or renormalise"
        )
    return lse


_LOSES_SUM = 2.0**40
"""Beyond it a float64 log-sum-exp has fewer than four digits of log n."""


def compute_with_lens(
    problem: Problem, lens: Lens, impl: Implementation = "auto"
) -> tuple[Tensor, Seen]:
    """The output of a checked problem, and what the lens saw of its weights."""
    check_lens(lens)
    if transformed():
        raise UnavailableError(
            "a lens cannot look into torch.compile, torch.vmap or another transform: "
            "call attend with lens= outside of it"
        )
    if lens.is_bare:
        output, lse = compute(problem, impl)
        return output, Seen.of_problem(
            problem, lens, Statistics(lse.detach().to(wide_type(problem)))
        )
    fitted = lens.fit(problem.extent)
    backend, _ = choose(problem, impl, Extras(lse=True, lens=fitted))
    output, statistics = backend.attend_with_statistics(problem, fitted)
    return output, Seen.of_problem(problem, lens, statistics)


def explain_choice(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    impl: Implementation = "auto",
    lens: Lens | None = None,
    **options: Any,
) -> Choice:
    """Which implementation `attend` would use for these arguments, and why; nothing is computed.

    >>> import torch, limelight as ll
    >>> x = torch.zeros(1, 1, 4, 8, dtype=torch.float64)
    >>> print(ll.explain_choice(x, x, x).impl)
    tiled
    """
    problem = prepare(query, key, value, **options)
    if lens is not None:
        check_lens(lens)
    fitted = None if lens is None else lens.fit(problem.extent)
    backend, reason = choose(problem, impl, Extras(lse=lens is not None, lens=fitted))
    return Choice(cast(Name, backend.NAME), reason)
