"""The one operation: exact attention over whatever implementation serves best."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from limelight.errors import OptionError, UnavailableError
from limelight.ops.backends import native, reference
from limelight.ops.backends import torch_fused as torch_kernels
from limelight.ops.bias import Alibi
from limelight.ops.kernels import missing, transformed
from limelight.ops.lens import native as lens_native
from limelight.ops.lens import tiled as lens_tiled
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens, Statistics
from limelight.ops.masks.mask import Mask
from limelight.ops.problem import Problem, check_problem

Implementation = Literal["auto", "native", "reference"]


class Choice(NamedTuple):
    """Which implementation serves a call, and why."""

    impl: Literal["native", "reference", "torch"]
    reason: str


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
    """Every query takes a weighted mix of the values, weighted by how well it matches their keys.

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
        dropout: the chance that a weight is dropped, drawn from torch's default generator.
        lens: what to note about the weights on the way; the result is then `(output, seen)`.
        impl: "auto" picks (`explain_choice` says what and why); "native" and "reference" are
            served as asked or raise.

    >>> import torch, limelight as ll
    >>> q = k = v = torch.eye(2).view(1, 1, 2, 2)
    >>> ll.attend(q, k, v, scale=1.0, mask=ll.causal())
    tensor([[[[1.0000, 0.0000],
              [0.2689, 0.7311]]]])
    """
    if bias is None and softcap is None and dropout == 0 and lens is None:
        program = () if mask is None else mask.program() if isinstance(mask, Mask) else None
        plain = None
        if program is not None and impl in ("auto", "native"):
            plain = native.quick(query, key, value, program, scale)
        if plain is not None:
            return plain
    problem = _prepare(
        query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap, dropout=dropout
    )
    if lens is not None:
        return look(problem, lens, impl)
    if choose(problem, impl).impl == "torch":
        return torch_kernels.attend(problem)
    return run(problem, impl)[0]


def _prepare(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Problem:
    """The call as the implementations take it, or a LimelightError."""
    return check_problem(autocast(query), autocast(key), autocast(value), **options)


def autocast(one: Tensor) -> Tensor:
    """The tensor in the type that torch.autocast asks for, as PyTorch's own attention takes it."""
    return one.to(autocast_type(one)) if isinstance(one, Tensor) else one


def autocast_type(one: Tensor) -> torch.dtype:
    """The type in which torch.autocast, if it is at work, hands the tensor to attention."""
    device = one.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return one.dtype
    narrow = one.is_floating_point() and one.dtype != torch.float64
    return torch.get_autocast_dtype(device) if narrow else one.dtype


def run(problem: Problem, impl: Implementation) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of a checked problem."""
    if choose(problem, impl).impl == "native":
        return native.attend(problem)
    return reference.attend(problem)


def look(problem: Problem, lens: Lens, impl: Implementation) -> tuple[Tensor, Seen]:
    """The output of a checked problem, and what the lens saw of its weights."""
    if not isinstance(lens, Lens):
        raise OptionError(f"lens must be a Lens, found {type(lens).__name__}")
    if transformed():
        raise UnavailableError(
            "a lens cannot look into torch.compile, torch.vmap or another transform: "
            "call attend with lens= outside of it"
        )
    if lens == Lens(keep=lens.keep):  # nothing to note but what attention gives anyway
        out, lse = run(problem, impl)
        return out, Seen.of_problem(problem, lens, Statistics(lse.detach()))
    form = lens_native if choose(problem, impl).impl == "native" else lens_tiled
    out, found = form.look(problem, lens.fit(problem.extent))
    if _trains(problem) or (problem.dropout and form is lens_tiled):
        out = run(problem, impl)[0]
    return out, Seen.of_problem(problem, lens, found)


def attend_normalised(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    lens: Lens | None = None,
    sinks: Tensor | None = None,
    lse: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Seen | None]:
    """Attention whose rows are normalised by more than their own keys.

        output_i = Σ_j exp(score_ij − lse_i) · value_j

    Args:
        query: as in `attend`, like `key`, `value` and `options`.
        key: `b g j d`.
        value: `b g j e`.
        lens: what to note of the weights.
        sinks: `h`, the score of a key without value: lse_i = log(exp(sink) + Σ_j exp(score_ij)).
        lse: `b h i`, the normaliser itself.
        options: mask, bias, scale, softcap and dropout.
    """
    problem = _prepare(query, key, value, **options)
    output, own = run(problem, "auto")
    total = own if lse is None else lse.to(own.dtype)
    if sinks is not None:
        total = torch.logaddexp(total, sinks.reshape(-1)[:, None].to(own.dtype))
    # A row without keys has −∞ for its own: it stays zero whatever it is normalised by.
    share = torch.where(own == -torch.inf, 0.0, torch.exp(own - total))
    output = output * share[..., None].to(output.dtype)
    if lens is None:
        return output, None
    found = lens_tiled.statistics(problem, lens, lse=total.detach())
    return output, Seen.of_problem(problem, lens, found)


def _trains(problem: Problem) -> bool:
    tensors = (problem.query, problem.key, problem.value, problem.bias, problem.slopes)
    return torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors)


def choose(problem: Problem, impl: Implementation) -> Choice:
    """Pick an implementation; raise where one was asked for by name and cannot serve."""
    if impl == "reference":
        return Choice("reference", "asked for by name")
    if impl not in ("auto", "native"):
        raise OptionError(f"impl must be 'auto', 'native' or 'reference', found {impl!r}")
    obstacle = native.obstacle(problem)
    if obstacle is None:
        return Choice("native", "the fused CPU kernel serves this call")
    if impl == "native":
        raise UnavailableError(f"impl='native' cannot serve this call: {obstacle}")
    if torch_kernels.serves(problem):
        return Choice("torch", f"PyTorch's fused kernel serves {problem.query.device}")
    if missing() is not None:
        _say_once(f"limelight runs on its slower PyTorch form: {missing()}")
    return Choice("reference", obstacle)


def explain_choice(
    query: Tensor, key: Tensor, value: Tensor, *, impl: Implementation = "auto", **options: Any
) -> Choice:
    """What `attend` would run for these arguments, and why; nothing is computed.

    >>> import torch, limelight as ll
    >>> x = torch.zeros(1, 1, 4, 8, dtype=torch.float64)
    >>> print(ll.explain_choice(x, x, x).impl)
    reference
    """
    return choose(_prepare(query, key, value, **options), impl)


@cache
def _say_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)
