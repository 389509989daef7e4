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
"""The least sum of a row's remaining weights from which float32 still gives its distribution."""


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
        """The cuts of some rows."""
        return Cuts(*(column[rows] for column in self))


class Effect(NamedTuple):
    """How much each cut changed a token's final output."""

    change: Tensor
    """1 − cosine of the final vector, or KL(before ‖ after) of the next-token distribution, nats"""
    log_prob: Tensor | None
    """the change of the log-probability of the token most likely before; None for an encoder"""

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
            output = runner.run(runner.rows(1), place)
        self.before = output[0].double()
        self._patcher = runner.patcher(place)

    def _record(self, call: AttentionCall) -> Tensor:
        output, seen = call.attend(lens=Lens())
        self.layers.append(seen)
        return output

    @property
    def chosen(self) -> int:
        """The token that is most likely next."""
        return int(self.before.argmax())

    def effect(self, outputs: Tensor) -> Effect:
        """The effect on each row, given its final output: `b c`."""
        outputs = outputs.double()
        if not self.runner.predicts:
            cosine = torch.cosine_similarity(outputs, self.before[None], dim=-1)
            return Effect((1 - cosine).clamp(min=0.0), None)
        before, after = self.before.log_softmax(-1), outputs.log_softmax(-1)
        change = (before.exp() * (before - after)).sum(-1).clamp(min=0.0)
        return Effect(change, after[:, self.chosen] - before[self.chosen])

    def cut(self, cuts: Cuts, how: How, title: str) -> Effect:
        """The effect of each cut by itself."""
        return self._run(
            cuts, lambda batch: _cutter(batch, how), lambda batch: self._cut_row(batch, how), title
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
        batches = list(_batches(cuts, self.runner.batch))
        for batch in tracked(batches, title, len(batches), progress=self.progress):
            effects.append(self.effect(self._outputs(batch, interceptor, row)))
        log_probs = [effect.log_prob for effect in effects if effect.log_prob is not None]
        return Effect(
            torch.cat([effect.change for effect in effects]),
            torch.cat(log_probs) if log_probs else None,
        )

    def _outputs(
        self,
        batch: Cuts,
        interceptor: Callable[[Cuts], Interceptor],
        row: Callable[[Cuts], Tensor | None],
    ) -> Tensor:
        """The final outputs of the rows of a batch, run from where they begin to differ."""
        count, layer, patcher = len(batch.key), int(batch.layer[0]), self._patcher
        own_row = bool((batch.query == self.place).all())
        if patcher is not None and own_row and layer != ALL:
            weights = row(batch)
            if weights is not None:
                heads = torch.einsum("bhj,hje->bhe", weights, self._values(layer))
                return patcher.patch_heads(layer, heads)
        with intercept(interceptor(batch), self.runner.model):
            if isinstance(patcher, DecoderPatcher) and own_row:
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

    def _cut_row(self, batch: Cuts, how: How) -> Tensor | None:
        """The token's weights with links cut, `b h j`; None where weights do not determine them.

        Those of a softmax without a link are the others divided by their sum, unless that is too
        small for float32, or rows do not sum to 1: a link zeroed outside is still in the softmax.
        """
        layer = int(batch.layer[0])
        weights = self._row(layer)
        h, j = weights.shape
        removed = _cut_heads(batch, h)[:, :, None] & (batch.key[:, None, None] == torch.arange(j))
        left = weights.masked_fill(removed.to(weights.device), 0.0)
        if how == "zero":
            return left
        total = left.sum(-1, keepdim=True)
        if not _problem(self.layers[layer]).rows_sum_to_one or bool((total < _LEAST).any()):
            return None
        return left / total

    def _uniform_row(self, batch: Cuts) -> Tensor:
        """Equal weights on what the token may see, in some heads: `b h j`."""
        layer = int(batch.layer[0])
        weights, extent = self._row(layer), self.layers[layer].extent
        even = _uniform_over_allowed(
            _problem(self.layers[layer]).mask, extent, self.place, weights
        )[0, :, 0]
        heads = _cut_heads(batch, extent.h).to(weights.device)
        return torch.where(heads[:, :, None], even, weights)


def _batches(cuts: Cuts, size: int) -> Iterator[Cuts]:
    """Batches of cuts in the same layer, in order."""
    _, counts = torch.unique_consecutive(cuts.layer, return_counts=True)
    first = 0
    for count in counts.tolist():
        for start in range(first, first + count, size):
            yield cuts.part(slice(start, min(start + size, first + count)))
        first += count


def _cut_heads_of_call(call: AttentionCall, cuts: Cuts) -> Tensor:
    """Which heads of a call are cut in each row: `b h`."""
    layers = (cuts.layer == layer_of(call)) | (cuts.layer == ALL)
    return layers[:, None] & _cut_heads(cuts, call.query.shape[1])


def _cut_heads(cuts: Cuts, h: int) -> Tensor:
    """Which heads are cut in each row, whatever the layer: `b h`."""
    return (cuts.head[:, None] == torch.arange(h)) | (cuts.head == ALL)[:, None]


def _cutter(cuts: Cuts, how: How) -> Interceptor:
    def cut(call: AttentionCall) -> Tensor:
        heads = _cut_heads_of_call(call, cuts)
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
    def uniform(call: AttentionCall) -> Tensor:
        output, heads = call.attend(), _cut_heads_of_call(call, cuts)
        b, h, i, _ = call.query.shape
        j = call.key.shape[2]
        place = int(cuts.query[0]) - (call.first_key + j - i)
        if not heads.any() or not 0 <= place < i:
            return output
        return _with_uniform_row(call, output, heads.to(output.device), Extent(b, h, i, j), place)

    return uniform


def _with_uniform_row(
    call: AttentionCall, output: Tensor, heads: Tensor, extent: Extent, place: int
) -> Tensor:
    """The output with the mean of the values that a query may see, in some heads of some rows."""
    weights = _uniform_over_allowed(call.mask, extent, place, output)
    value = call.value.repeat_interleave(extent.h // call.value.shape[1], dim=1)
    mean = (weights @ value)[:, :, 0]
    output = output.clone()
    output[:, :, place] = torch.where(heads[..., None], mean, output[:, :, place])
    return output


def _uniform_over_allowed(
    mask: Mask | Tensor | None, extent: Extent, place: int, like: Tensor
) -> Tensor:
    """Equal weights on the keys that a query may see: `b h 1 j`."""
    b, h, _, j = extent
    allowed = torch.ones(b, h, 1, j, dtype=torch.bool, device=like.device)
    if mask is not None:
        row = slice(place, place + 1)
        region = Region.at(extent, slice(0, b), slice(0, h), row, slice(0, j), like.device)
        allowed = as_mask(mask).allowed(region).expand(b, h, 1, j)
    return allowed.to(like) / allowed.sum(-1, keepdim=True).clamp(min=1)


def _problem(seen: Seen) -> Problem:
    assert isinstance(seen.source, Recomputed)
    return seen.source.problem
