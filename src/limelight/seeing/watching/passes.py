"""The calls of a watched model in order: by stack, layer, occurrence and pass.

A pass is a forward call and those that continue from its cache, named by the number of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from limelight.errors import OptionError
from limelight.ops.lens.sources import Recomputed
from limelight.seeing.recording.join import (
    Piece,
    own_keys,
    with_keys,
    without_keys,
    without_source,
)
from limelight.seeing.watching.beams import origins, rows_before


class LayerCall(NamedTuple):
    """One call of one layer."""

    piece: Piece
    ids: Tensor | None = None
    """b i: the tokens that look"""
    key_ids: Tensor | None = None
    """b j: the tokens looked at, where these are others"""
    real: Tensor | None = None
    """b j: which keys are tokens, where some are padding"""
    texts_begun: int = 0
    """how many texts the layer's own stack had begun: distinguishes the targets of one source"""
    origins: Tensor | None = None
    """b b: which rows of the call before each row may continue; None where there is none"""

    def row_of(self, tensor: Tensor, row: int) -> list[int]:
        """The ids of a row of the call; several rows may share one row of the tensor."""
        return tensor[row * len(tensor) // self.piece.seen.extent.b].tolist()


class Key(NamedTuple):
    """Which calls of a stack belong together."""

    layer: int
    occurrence: int


class StackCalls:
    """The calls of one stack of layers."""

    def __init__(self, path: str, *, cross: bool, keep: bool) -> None:
        self.path, self.cross, self._keep = path, cross, keep
        self._passes_by_key: dict[Key, dict[int, list[LayerCall]]] = {}

    def add(self, key: Key, forward: int, call: LayerCall) -> None:
        """Add a call, which may continue the one before it."""
        passes = self._passes_by_key.setdefault(key, {})
        call = call._replace(piece=own_keys(call.piece))
        if passes:
            last = next(reversed(passes.values()))
            rows = _origins(last[-1], call, cross=self.cross)
            if not self._keep:
                last[-1] = last[-1]._replace(piece=without_source(last[-1].piece))
            if rows is not None:
                if bool(rows.diagonal().all()):
                    last[-1] = last[-1]._replace(piece=without_keys(last[-1].piece, call.piece))
                last.append(call._replace(origins=rows))
                return
        passes[forward] = [call]

    def begun(self, key: Key) -> int:
        """How many passes of a layer have begun."""
        return len(self._passes_by_key.get(key, {}))

    @property
    def passes(self) -> list[int]:
        """The numbers of the passes, in order."""
        return sorted({number for passes in self._passes_by_key.values() for number in passes})

    def keys(self, which: int, occurrence: int) -> list[Key]:
        """The layers that a pass has calls of."""
        number = self._number(which)
        keys = sorted(
            key
            for key, passes in self._passes_by_key.items()
            if key.occurrence == occurrence and number in passes
        )
        if not keys:
            count = 1 + max(
                key.occurrence for key, passes in self._passes_by_key.items() if number in passes
            )
            raise OptionError(
                f"occurrence must be one of 0 to {count - 1}, the calls of a layer in a forward "
                f"pass, found {occurrence}"
            )
        return keys

    def layer_calls(self, key: Key, which: int) -> list[LayerCall]:
        """The calls of a layer in a pass."""
        keys = self.keys(which, key.occurrence)
        if key not in keys:
            layers = [other.layer for other in keys]
            raise OptionError(f"layer must be one of {layers}, found {key.layer}")
        return self._passes_by_key[key][self._number(which)]

    def pieces(self, key: Key, which: int) -> list[Piece]:
        """What was seen in each call of a layer in a pass."""
        pieces = [call.piece for call in self.layer_calls(key, which)]
        return with_keys(pieces) if self._keep else [without_source(piece) for piece in pieces]

    def rows_before(
        self, which: int, occurrence: int, own: Sequence[StackCalls] = ()
    ) -> list[list[int]]:
        """For each call of a pass but the first: the row of the call before that each continues.

        The two rows hold the same keys in every layer. The keys of a source are the same for all
        beams, so those of the target's own text (`own`) are compared too.
        """
        by_layer = [self.layer_calls(key, which) for key in self.keys(which, occurrence)]
        texts_begun = by_layer[0][0].texts_begun
        if self.cross and texts_begun:
            for stack in own:
                number = texts_begun - 1
                by_layer += [stack.layer_calls(key, number) for key in stack.keys(number, 0)]
        same = [calls for calls in by_layer if len(calls) == len(by_layer[0])]
        return rows_before(
            [
                [call.origins for call in layers if call.origins is not None]
                for layers in list(zip(*same, strict=True))[1:]
            ]
        )

    def _number(self, which: int) -> int:
        passes = self.passes
        if not -len(passes) <= which < len(passes):
            raise OptionError(f"which must be one of the {len(passes)} passes, found {which}")
        return passes[which]


def _origins(before: LayerCall, after: LayerCall, *, cross: bool) -> Tensor | None:
    """The `origins` of a call that continues the cache before it, or a target; None for others."""
    earlier, later = before.piece, after.piece
    if not isinstance(earlier.seen.source, Recomputed) or not isinstance(
        later.seen.source, Recomputed
    ):
        return None  # weights from elsewhere have no keys to compare
    if cross:
        follows = before.texts_begun == after.texts_begun and earlier.last_key == later.last_key
    else:
        start = later.last_key - later.seen.extent.i
        follows = start > 0 and start == earlier.last_key
    return origins(earlier, later) if follows else None
