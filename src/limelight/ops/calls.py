"""The one seam: every attention call of a model, and what records, changes or replaces it.

A layer, a drop-in for PyTorch or Hugging Face's interface describes what it is about to compute as
an `AttentionCall` and hands it to `run`. Without an interceptor that is `attend` and nothing else.
Within `with intercept(interceptor):` the interceptor is called in its place and returns the output:

    def record(call):
        output, seen = call.attend(lens=lens)
        kept.append((call.layer, seen))
        return output

    def cut(call):
        return call.without([(5, 2)], heads=[3]).attend()

Interceptors nest. The innermost is called first; its `call.attend` calls the next one out, and the
outermost reaches the operation. What one changes, all others see, in either order.

Nothing is patched. Other threads and tasks are not affected.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor, nn

from limelight.checks import check_flag, check_plain, check_whole
from limelight.errors import OptionError, UnavailableError
from limelight.ops.attend import (
    attend,
    compute,
    compute_with_lens,
    normaliser,
    prepare,
)
from limelight.ops.bias import Alibi
from limelight.ops.call_sites import CallSites
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens, Statistics, check_lens
from limelight.ops.masks.blocks import blocks
from limelight.ops.masks.counts import counts
from limelight.ops.masks.links import without
from limelight.ops.masks.mask import Mask, as_mask
from limelight.ops.problem import Problem
from limelight.ops.uncompiled import uncompiled


@dataclass(frozen=True, slots=True, eq=False)
class AttentionCall:
    """One attention call before it is computed: its inputs, and the module that makes it.

    weights_ij = factor_ij · exp(score_ij − lse_i), where lse_i makes the row and its sink sum to 1
    unless it is given, and factors are 1 unless given.
    """

    query: Tensor
    """b h i d, positions already applied"""
    key: Tensor
    """b g j d, those of a cache included"""
    value: Tensor
    """b g j e"""
    mask: Mask | Tensor | None = None
    bias: Tensor | Alibi | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    """h: the score of a key without value, which only takes weight (attention sinks)"""
    dropout: float = 0.0
    lse: Tensor | None = None
    """b h i: what the rows are normalised by, instead of their own log-sum-exp: rows then need not
    sum to 1"""
    factors: Tensor | None = None
    """at least 0, broadcasts to b h i j: what the weights are multiplied by; the rows then sum to
    1 again unless `lse` is given"""

    module: nn.Module | None = None
    """the module that attends, where it is known"""
    path: str = ""
    """the module's name within the model that is intercepted, "blocks.3.attention" """
    stack: str = ""
    """the path with its layer number left out, the same for all layers of a kind"""
    layer: int | None = None
    """the number of the layer, counted from 0"""
    occurrence: int = 0
    """how many calls of the same layer came before it in the same forward pass of the model"""
    forward: int = 0
    """the number of the forward pass, counted from 0"""
    first_key: int = 0
    """the position in the text of the first key"""

    _rest: tuple[_Entry, ...] = field(default=(), repr=False)
    """the interceptors still to be called, innermost last"""
    _requests: tuple[_Request, ...] = field(default=(), repr=False)
    """the lenses of the interceptors already called"""

    def replace(self, **changes: Any) -> AttentionCall:
        """The same call with other values.

        >>> import torch
        >>> x = torch.zeros(1, 1, 2, 4)
        >>> AttentionCall(x, x, x).replace(scale=2.0).scale
        2.0
        """
        return dataclasses.replace(self, **changes)

    @overload
    def attend(self, *, lens: None = None) -> Tensor: ...
    @overload
    def attend(self, *, lens: Lens) -> tuple[Tensor, Seen]: ...

    def attend(self, *, lens: Lens | None = None) -> Tensor | tuple[Tensor, Seen]:
        """The output `b h i e`, by the next interceptor or by the operation itself.

        With a lens: also what it sees of the weights that are used in the end.
        """
        if lens is None:
            return self._next()
        check_lens(lens)
        request = _Request(lens, [])
        output = self.replace(_requests=(*self._requests, request))._next()
        if not request.seen:
            raise UnavailableError(
                "an interceptor replaced the output of an attention call without attending: "
                "there are no weights for a lens to see"
            )
        return output, request.seen[-1]

    def _next(self) -> Tensor:
        rest = self._rest
        while rest:
            rest, entry = rest[:-1], rest[-1]
            call = self.replace(_rest=rest)
            located = call if entry.locate is None else entry.locate(call)
            if located is not None:
                return entry.interceptor(located)
        return self._compute()

    def _compute(self) -> Tensor:
        token = _computing.set(True)
        try:
            return self._compute_requests()
        finally:
            _computing.reset(token)

    def _compute_requests(self) -> Tensor:
        if not self._requests:
            return self.compute()
        problem = self._problem()
        lenses = list(dict.fromkeys(request.lens for request in self._requests))
        lenses.sort(key=lambda lens: lens.is_bare)
        # The sweep that computes the output serves the first lens; each further one takes a sweep
        # of its own, unless it records only what every sweep gives.
        output, seen = compute_with_lens(problem, lenses[0])
        seen_by = {lenses[0]: seen}
        for lens in lenses[1:]:
            if lens.is_bare:
                seen_by[lens] = Seen.of_problem(problem, lens, Statistics(seen.lse))
            else:
                seen_by[lens] = compute_with_lens(problem, lens)[1]
        for request in self._requests:
            request.seen.append(seen_by[request.lens])
        return output

    def compute(self) -> Tensor:
        """The output `b h i e` by the operation itself, past all interceptors."""
        if not (self.sinks is self.lse is self.factors is None):
            return compute(self._problem())[0]
        return attend(
            self.query, self.key, self.value,
            mask=self.mask, bias=self.bias, scale=self.scale, softcap=self.softcap,
            dropout=self.dropout,
        )  # fmt: skip

    def _problem(self) -> Problem:
        return prepare(
            self.query, self.key, self.value,
            mask=self.mask, bias=self.bias, scale=self.scale, softcap=self.softcap,
            dropout=self.dropout, sinks=self.sinks, lse=self.lse, factors=self.factors,
        )  # fmt: skip

    def normaliser(self) -> Tensor:
        """What the rows of this call are normalised by: `b h i`, its log-sum-exp unless changed.

        In float64, where the device has it: in float32 log n is lost among large scores. Computing
        it takes as long as the call itself.
        """
        token = _computing.set(True)
        try:
            return normaliser(self.replace(dropout=0.0)._problem())
        finally:
            _computing.reset(token)

    def without(
        self,
        pairs: Iterable[Sequence[int]] | Tensor,
        *,
        heads: Sequence[int] | None = None,
        renormalise: bool = True,
    ) -> AttentionCall:
        """The call with single links cut, in memory linear in the sequence.

        Args:
            pairs: (query, key), both counted from 0 within the call.
            heads: in these heads only; all unless given.
            renormalise: the rows sum to 1 again, as if the links had been masked. Otherwise the
                other weights stay as they are, and the rows sum to less.

        >>> import torch
        >>> x = torch.zeros(1, 1, 2, 4)
        >>> AttentionCall(x, x, x).without([(1, 0)]).attend(lens=Lens())[1].dense()[0, 0]
        tensor([[0.5000, 0.5000],
                [0.0000, 1.0000]])
        >>> call = AttentionCall(x, x, x).without([(1, 0)], renormalise=False)
        >>> call.attend(lens=Lens())[1].dense()[0, 0]
        tensor([[0.5000, 0.5000],
                [0.0000, 0.5000]])
        """
        cut = without(pairs)
        h, i, j = self.query.shape[1], self.query.shape[2], self.key.shape[2]
        if heads is not None:
            spared = torch.ones(h, 1, 1, dtype=torch.bool)
            for head in counts("head", heads):
                spared[check_whole("head", head, 0, h - 1)] = False
            cut = cut | blocks(spared, (max(i, 1), max(j, 1)))
        mask = cut if self.mask is None else as_mask(self.mask) & cut
        return self._changed(renormalise, mask=mask)

    def scaled(self, factors: Tensor, *, renormalise: bool = True) -> AttentionCall:
        """The call with its weights multiplied after the softmax.

            weights_ij ← factor_ij · weights_ij        ( / Σ_j, if renormalised)

        Args:
            factors: at least 0, broadcasts to `b h i j`: `h 1 j` scales what keys give, in linear
                memory.
            renormalise: the rows sum to 1 again. Otherwise they sum to what the factors leave.

        >>> import torch
        >>> x = torch.zeros(1, 1, 2, 4)
        >>> call = AttentionCall(x, x, x).scaled(torch.tensor([1.0, 3.0]), renormalise=False)
        >>> call.attend(lens=Lens())[1].dense()[0, 0]
        tensor([[0.5000, 1.5000],
                [0.5000, 1.5000]])
        """
        product = check_plain("factors", factors)
        if self.factors is not None:
            product = product * self.factors
        call = self._changed(renormalise, factors=product)
        call._problem()  # so that a wrong tensor raises here, not when the call is computed
        return call

    def _changed(self, renormalise: bool, **changes: Any) -> AttentionCall:
        if check_flag("renormalise", renormalise):
            return self.replace(**changes)
        return self.replace(lse=self.normaliser(), sinks=None, **changes)


Interceptor = Callable[[AttentionCall], Tensor]
"""Takes a call and returns its output, `b h i e`."""

Locate = Callable[[AttentionCall], AttentionCall | None]
"""The call with path, stack and layer of its module, or None where another model makes it."""


class _Entry(NamedTuple):
    interceptor: Interceptor
    locate: Locate | None


class _Request(NamedTuple):
    lens: Lens
    seen: list[Seen]


_entries: ContextVar[tuple[_Entry, ...]] = ContextVar("limelight_interceptors", default=())
_computing: ContextVar[bool] = ContextVar("limelight_computing", default=False)


@contextmanager
def intercept(
    interceptor: Interceptor, model: nn.Module | None = None, *, locate: Locate | None = None
) -> Generator[None]:
    """Within the block, hand attention calls to `interceptor`, which returns their output.

    Args:
        interceptor: takes an `AttentionCall` and returns the output `b h i e`; `call.attend()` is
            what would have been computed.
        model: only calls of modules within this model are intercepted, and each says which module
            makes it (`path`, `stack`, `layer`, `occurrence`). All calls unless given, PyTorch's
            own (`F.scaled_dot_product_attention`, `nn.MultiheadAttention`) included. What
            `torch.compile` compiled runs uncompiled meanwhile, in all threads.
        locate: in place of a model: returns the call with the path, stack and layer of its module,
            or None where it is not to be intercepted.

    >>> import torch, limelight as ll
    >>> shapes = []
    >>> def record_shape(call):
    ...     shapes.append(tuple(call.query.shape))
    ...     return call.attend()
    >>> with ll.intercept(record_shape):
    ...     _ = ll.Attention(8, heads=2)(torch.randn(1, 5, 8))
    >>> shapes
    [(1, 2, 5, 4)]
    """
    if not callable(interceptor):
        raise OptionError(f"interceptor must be a function, found {interceptor!r}")
    # Imported here, because it imports this module.
    from limelight.ops.torch_calls import InterceptedTorchCalls, torch_calls_of

    if model is not None:
        sites = CallSites(model)
        locate = partial(_locate, sites)
        block = sites.tracking(mode=torch_calls_of(model))
    else:
        block = InterceptedTorchCalls() if locate is None else nullcontext()
    token = _entries.set((*_entries.get(), _Entry(interceptor, locate)))
    try:
        with uncompiled(), block:
            yield
    finally:
        _entries.reset(token)


def _locate(sites: CallSites, call: AttentionCall) -> AttentionCall | None:
    site = sites.site(call.module)
    return None if site is None else call.replace(**site._asdict())


def intercepted() -> bool:
    """Whether attention calls are intercepted in this context.

    Never while torch.compile traces: within a block of `intercept` compiled functions run
    uncompiled, so no graph has to hold an interceptor.
    """
    return not torch.compiler.is_compiling() and bool(_entries.get())


def computing() -> bool:
    """Whether a call is being computed: PyTorch's attention is then part of that call."""
    return not torch.compiler.is_compiling() and _computing.get()


def run(call: AttentionCall) -> Tensor:
    """The output of a call, by the interceptors of this context or by the operation."""
    return call.replace(_rest=_entries.get()).attend() if intercepted() else call.compute()


def run_seen(call: AttentionCall, lens: Lens) -> tuple[Tensor, Seen]:
    """The output of a call, and what a lens sees of the weights that were used in the end."""
    return call.replace(_rest=_entries.get()).attend(lens=lens)
