"""How a token's final output changes when links are cut: many cuts as the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.insight.cutting import How, cut_call
from limelight.insight.patching import DecoderPatcher, EncoderPatcher
from limelight.insight.progress import tracked
from limelight.insight.runner import Runner, layer_of
from limelight.ops.calls import AttentionCall, Interceptor, intercept
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.sources import Recomputed
from limelight.ops.lens.spec import Lens
from limelight.ops.masks.mask import Mask, as_mask
from limelight.ops.masks.region import Extent, Region
from limelight.ops.problem import Problem

ALL = -1
"""Stands for every layer, every head, or every other query."""
_LEAST = 1e-20
"""What must at least remain of a row for float32 weights to give its distribution."""


class Cuts(NamedTuple):
    """One link to cut for each row of a batch; layer, head and query may be `ALL`."""

    layer: Tensor
    head: Tensor
    query: Tensor
    key: Tensor

    @classmethod
    def of(cls, layer: Tensor, head: Tensor | int, query: Tensor | int, key: Tensor) -> Cuts:
        """From tensors that broadcast to one another, flattened."""
        parts = torch.broadcast_tensors(layer, torch.as_tensor(head), torch.as_tensor(query), key)
        return cls(*(part.flatten() for part in parts))

    def part(self, rows: slice) -> Cuts:
        """Some of them."""
        return Cuts(*(each[rows] for each in self))


class Effect(NamedTuple):
    """How much each cut changed a token's final output."""

    change: Tensor
    """1 − cosine of the final vector, or KL(before ‖ after) of the next-token distribution, nats"""
    log_prob: Tensor | None
    """the change of the log-probability of the token chosen before, where tokens are predicted"""

    def view(self, *shape: int) -> Effect:
        """In another shape."""
        return Effect(
            self.change.view(shape), None if self.log_prob is None else self.log_prob.view(shape)
        )


class CleanRun:
    """A runner and its run without cuts: the baseline of every cut."""

    def __init__(self, runner: Runner, place: int, *, progress: bool | None = None) -> None:
        self.runner, self.place, self.progress = runner, place, progress
        self.layers: list[Seen] = []
        with intercept(self._record, runner.model):
            end = runner.run(runner.rows(1), place)
        self.before = end[0].double()
        self._patcher = runner.patcher(place)

    def _record(self, call: AttentionCall) -> Tensor:
        output, seen = call.attend(lens=Lens())
        self.layers.append(seen)
        return output

    @property
    def chosen(self) -> int:
        """The token that is most likely next."""
        return int(self.before.argmax())

    def effect(self, ends: Tensor) -> Effect:
        """The effect, given the final outputs of some rows: `b c`."""
        ends = ends.double()
        if not self.runner.predicts:
            same = torch.cosine_similarity(ends, self.before[None], dim=-1)
            return Effect((1 - same).clamp(min=0.0), None)
        before, after = self.before.log_softmax(-1), ends.log_softmax(-1)
        change = (before.exp() * (before - after)).sum(-1).clamp(min=0.0)
        return Effect(change, after[:, self.chosen] - before[self.chosen])

    def cut(self, cuts: Cuts, how: How, title: str) -> Effect:
        """The effect of each cut by itself."""
        return self._run(
            cuts, lambda part: _cutter(part, how), lambda part: self._cut_row(part, how), title
        )

    def uniform(self, cuts: Cuts, title: str) -> Effect:
        """The effect of equal weights in place of a query's own; `cuts.key` is ignored."""
        return self._run(cuts, _uniform_weights, self._uniform_row, title)

    def _run(
        self,
        cuts: Cuts,
        interceptor: Callable[[Cuts], Interceptor],
        row: Callable[[Cuts], Tensor | None],
        title: str,
    ) -> Effect:
        if not len(cuts.key):
            none = torch.zeros(0, dtype=torch.float64)
            return Effect(none, none if self.runner.predicts else None)
        effects: list[Effect] = []
        parts = self._parts(cuts)
        for part in tracked(parts, title, len(parts), progress=self.progress):
            effects.append(self.effect(self._end(part, interceptor, row)))
        log_probs = [each.log_prob for each in effects if each.log_prob is not None]
        return Effect(
            torch.cat([each.change for each in effects]),
            torch.cat(log_probs) if log_probs else None,
        )

    def _end(
        self,
        part: Cuts,
        interceptor: Callable[[Cuts], Interceptor],
        row: Callable[[Cuts], Tensor | None],
    ) -> Tensor:
        """The final outputs of the rows of a batch, run from where they begin to differ."""
        count, layer, patcher = len(part.key), int(part.layer[0]), self._patcher
        own = bool((part.query == self.place).all())
        if patcher is not None and own and layer != ALL:
            weights = row(part)
            if weights is not None:
                heads = torch.einsum("bhj,hje->bhe", weights, self._values(layer))
                return patcher.patch_heads(layer, heads)
        with intercept(interceptor(part), self.runner.model):
            if isinstance(patcher, DecoderPatcher) and own:
                return patcher.rerun(count)
            if isinstance(patcher, EncoderPatcher) and layer != ALL:
                return patcher.rerun_from(layer, count)
            return self.runner.run(self.runner.rows(count), self.place)

    def _values(self, layer: int) -> Tensor:
        """The values of all heads in a layer: h j e."""
        value = _problem(self.layers[layer]).value[0]
        return value.repeat_interleave(self.layers[layer].extent.h // len(value), dim=0)

    def _row(self, layer: int) -> Tensor:
        """The token's weights in a layer: h j."""
        return self.layers[layer].rows([self.place])[0, :, 0]

    def _cut_row(self, part: Cuts, how: How) -> Tensor | None:
        """The token's weights with links cut, `b h j`; None where float32 lost the others."""
        weights = self._row(int(part.layer[0]))
        h, j = weights.shape
        removed = _hit_heads(part, h)[:, :, None] & (part.key[:, None, None] == torch.arange(j))
        left = weights.masked_fill(removed.to(weights.device), 0.0)
        if how == "zero":
            return left
        total = left.sum(-1, keepdim=True)
        return None if bool((total < _LEAST).any()) else left / total

    def _uniform_row(self, part: Cuts) -> Tensor:
        """Equal weights on what the token may see, in some heads: `b h j`."""
        layer = int(part.layer[0])
        weights, extent = self._row(layer), self.layers[layer].extent
        even = _uniform_over_allowed(
            _problem(self.layers[layer]).mask, extent, self.place, weights
        )[0, :, 0]
        heads = _hit_heads(part, extent.h).to(weights.device)
        return torch.where(heads[:, :, None], even, weights)

    def _parts(self, cuts: Cuts) -> list[Cuts]:
        """Batches of rows that begin to differ at the same layer."""
        return list(_batches(cuts, self.runner.batch))


def _batches(cuts: Cuts, size: int) -> Iterator[Cuts]:
    _, counts = torch.unique_consecutive(cuts.layer, return_counts=True)
    first = 0
    for count in counts.tolist():
        for start in range(first, first + count, size):
            yield cuts.part(slice(start, min(start + size, first + count)))
        first += count


def _hit(call: AttentionCall, cuts: Cuts) -> Tensor:
    """Which heads of which rows are meant: `b h`."""
    layers = (cuts.layer == layer_of(call)) | (cuts.layer == ALL)
    return layers[:, None] & _hit_heads(cuts, call.query.shape[1])


def _hit_heads(cuts: Cuts, h: int) -> Tensor:
    """Which heads are meant in the layers that are: `b h`."""
    return (cuts.head[:, None] == torch.arange(h)) | (cuts.head == ALL)[:, None]


def _cutter(cuts: Cuts, how: How) -> Interceptor:
    def cut(call: AttentionCall) -> Tensor:
        heads = _hit(call, cuts)
        if not heads.any():
            return call.attend()
        i, j = call.query.shape[2], call.key.shape[2]
        queries = torch.arange(i) + call.first_key + j - i
        keys = torch.arange(j) + call.first_key == cuts.key[:, None]
        others = (cuts.query == ALL)[:, None] & (queries != cuts.key[:, None])
        rows = (queries == cuts.query[:, None]) | others
        removed = heads[:, :, None, None] & rows[:, None, :, None] & keys[:, None, None, :]
        return cut_call(call, ~removed.to(call.query.device), how).attend()

    return cut


def _uniform_weights(cuts: Cuts) -> Interceptor:
    def level(call: AttentionCall) -> Tensor:
        output, heads = call.attend(), _hit(call, cuts)
        b, h, i, _ = call.query.shape
        j = call.key.shape[2]
        place = int(cuts.query[0]) - (call.first_key + j - i)
        if not heads.any() or not 0 <= place < i:
            return output
        return _uniform_row(call, output, heads.to(output.device), Extent(b, h, i, j), place)

    return level


def _uniform_row(
    call: AttentionCall, output: Tensor, heads: Tensor, extent: Extent, place: int
) -> Tensor:
    """The output with the mean of the values that a query may see, in some heads of some rows."""
    weights = _uniform_over_allowed(call.mask, extent, place, output)
    value = call.value.repeat_interleave(extent.h // call.value.shape[1], dim=1)
    level = (weights @ value)[:, :, 0]
    output = output.clone()
    output[:, :, place] = torch.where(heads[..., None], level, output[:, :, place])
    return output


def _uniform_over_allowed(
    mask: Mask | Tensor | None, extent: Extent, place: int, like: Tensor
) -> Tensor:
    """Equal weights on the keys that a query may see: `b h 1 j`."""
    b, h, _, j = extent
    allowed = torch.ones(b, h, 1, j, dtype=torch.bool, device=like.device)
    if mask is not None:
        row = slice(place, place + 1)
        where = Region.at(extent, slice(0, b), slice(0, h), row, slice(0, j), like.device)
        allowed = as_mask(mask).allowed(where).expand(b, h, 1, j)
    return allowed.to(like) / allowed.sum(-1, keepdim=True).clamp(min=1)


def _problem(seen: Seen) -> Problem:
    assert isinstance(seen.source, Recomputed)
    return seen.source.problem
