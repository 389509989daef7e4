"""Watching a Hugging Face model that is already loaded."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from limelight.checks import shape_text
from limelight.errors import OptionError
from limelight.ops.calls import AttentionCall, intercept
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens
from limelight.seeing.choice import LENS, check_chosen
from limelight.seeing.recording.join import (
    Piece,
    join,
    own_keys,
    with_keys,
    without_keys,
    without_source,
)
from limelight.seeing.recording.recording import Recording
from limelight.seeing.watching.beams import along, batch_of, in_place, line_of, origins, rows_before
from limelight.seeing.watching.calls import Calls
from limelight.seeing.watching.hf_tokens import tokens_of_ids
from limelight.seeing.watching.huggingface import (
    check_model,
    register,
    set_implementation,
)
from limelight.seeing.watching.stacks import Place, is_cross, labelled
from limelight.version import __version__

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class _Step(NamedTuple):
    """One call of one layer."""

    piece: Piece
    ids: Tensor | None
    """b i: the tokens that looked"""
    key_ids: Tensor | None
    """b j: the tokens looked at, where these are others"""
    turn: int
    """how often the layer's own stack had begun a text, which tells targets of a source apart"""
    origins: Tensor | None = None
    """b b: which rows of the call before each row may go on from; None where there is none"""

    def row_of(self, ids: Tensor, row: int) -> list[int]:
        """The ids of a row; of a batch that was read once for several rows, those it stands for."""
        return ids[row * len(ids) // self.piece.seen.extent.b].tolist()


@contextmanager
def watch(
    model: PreTrainedModel,
    lens: Lens = LENS,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Generator[Watched]:
    """Record what a Hugging Face model attends to while the block runs.

    The model runs on limelight's attention within the block, and as before after it, whatever
    happens inside. Every call is recorded: a forward pass, a prompt, each generated token.

        with ll.watch(model, ll.Lens(top=8)) as watched:
            model.generate(**inputs)
        watched.seen(layer=0)                # prompt and generated tokens together
        watched.recording(tokenizer)         # for the views

    Args:
        model: a model that goes through the attention interface of transformers.
        lens: what to note of the weights.
        layers: the layers to record, by number; all unless given.
        heads: the heads to record, by number; all unless given.
    """
    register()  # says so where transformers is not installed
    check_model(model)
    watched = Watched(model, lens, layers, heads)
    configs = set_implementation(model)
    hooks = watched.model_calls.hooks()
    try:
        with intercept(watched.record, locate=watched.model_calls.locate):
            yield watched
    finally:
        for hook in hooks:
            hook.remove()
        for config, before in configs:
            config._attn_implementation_internal = before


class Watched:
    """What was seen of a model while it was watched: by stack, layer and pass.

    A model with one stack of layers has one way of attending; an encoder-decoder has several
    (`stacks` names them: "encoder", "decoder", "cross"). A pass is a forward call and those that
    go on from its cache. Layers that share one module are told apart by the order of its calls.

    Beam search makes rows go on from other rows. The rows of a pass are those of its last call,
    each followed back through the calls that it came from.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        lens: Lens,
        layers: Sequence[int] | None,
        heads: Sequence[int] | None,
    ) -> None:
        self.model, self.lens = model, lens
        self.heads = None if heads is None else list(heads)
        self.layers = None if layers is None else list(layers)
        check_chosen("heads", heads, getattr(model.config, "num_attention_heads", None))
        check_chosen("layers", layers, getattr(model.config, "num_hidden_layers", None))
        self.model_calls = Calls(model)
        self._tracks: dict[str, dict[int, list[list[_Step]]]] = {}

    def record(self, call: AttentionCall) -> Tensor:
        """Compute a call of the model and note what it saw."""
        assert call.module is not None
        assert call.layer is not None
        if self.layers is not None and call.layer not in self.layers:
            return call.attend()
        # What calls go on from is told by their keys, which a lens with keep=False drops later.
        output, seen = call.attend(lens=replace(self.lens, keep=True))
        self._note(call.module, Place(call.stack, call.layer), seen, call.first_key)
        return output

    def _note(self, module: nn.Module, place: Place, seen: Seen, first_key: int) -> None:
        if self.heads is not None:
            seen = seen.heads(self.heads)
        ids = self.model_calls.ids_for(module, seen.extent.i)
        key_ids = self.model_calls.source_ids(seen.extent.j) if place.cross else None
        passes = self._tracks.setdefault(place.stack, {}).setdefault(place.layer, [])
        step = _Step(own_keys(Piece(seen, first_key)), ids, key_ids, self._turn(place))
        if not passes:
            passes.append([step])
            return
        last = passes[-1]
        found = _origins(last[-1], step, place)
        if not self.lens.keep:
            last[-1] = last[-1]._replace(piece=without_source(last[-1].piece))
        if found is None:
            passes.append([step])
            return
        if bool(found.diagonal().all()):
            last[-1] = last[-1]._replace(piece=without_keys(last[-1].piece, step.piece))
        last.append(step._replace(origins=found))

    def _turn(self, place: Place) -> int:
        stacks = self._own_stacks(place.stack)
        return sum(len(self._tracks[stack].get(place.layer, [])) for stack in stacks)

    def _own_stacks(self, path: str) -> list[str]:
        """Where the layers of a stack look at their own text."""
        root = path.partition("*")[0]
        return [stack for stack in self._tracks if stack.startswith(root) and not is_cross(stack)]

    @property
    def stacks(self) -> tuple[str, ...]:
        """What there is to see: "self", or "encoder", "decoder" and "cross"."""
        return tuple(labelled(self._tracks))

    def passes(self, stack: str | None = None) -> int:
        """How many passes were recorded."""
        return len(next(iter(self._stack(stack).values())))

    def calls(self, layer: int, stack: str | None = None, which: int = -1) -> list[Seen]:
        """What a layer saw, call by call: the prompt, then each token."""
        pieces = self._pieces(layer, stack, which)
        lines = self._lines(stack, which)
        if in_place(lines):
            return [piece.seen for piece in pieces]
        return [
            batch_of([piece.seen.batch_row(line[call]) for line in lines])
            for call, piece in enumerate(pieces)
        ]

    def seen(self, layer: int, stack: str | None = None, which: int = -1) -> Seen:
        """What a layer saw in a pass (the last unless told otherwise), its calls put together."""
        pieces = self._pieces(layer, stack, which)
        lines = self._lines(stack, which)
        if in_place(lines):
            return join(pieces)
        return batch_of([join(along(line, pieces)) for line in lines])

    def recording(
        self,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        text: str | None = None,
        stack: str | None = None,
        which: int = -1,
        row: int = 0,
        sequences: Tensor | None = None,
    ) -> Recording:
        """A pass as a recording, for views and files.

        Args:
            tokenizer: names the tokens; they are called by their ids without.
            text: the text that was read; put together from the tokens unless given.
            stack: which of `stacks`; needed where there are several.
            which: the pass, counted as in a list.
            row: the row of the batch.
            sequences: the token ids that generate() gave back, `rows n`, after a beam search. `row`
                then counts its rows, and the beam that became it is followed, which may have ended
                before the others; without, `row` counts the beams of the last call.
        """
        numbers = tuple(sorted(self._stack(stack)))
        steps = self._steps(numbers[0], stack, which)
        line = self._line_of(stack, which, row, sequences)
        layers = tuple(join(along(line, self._pieces(one, stack, which))) for one in numbers)
        ids = _joined_ids(steps, line)
        extent = layers[0].extent
        queries, query_text = (), ""
        if extent.i == extent.j and not is_cross(self._path(stack)):
            said, tokens = tokens_of_ids(tokenizer, ids, extent.j, text)
        else:
            key_ids = steps[0].key_ids
            keys = None if key_ids is None else steps[0].row_of(key_ids, line[0])
            said, tokens = tokens_of_ids(tokenizer, keys, extent.j, text)
            query_text, queries = tokens_of_ids(tokenizer, ids, extent.i, None)
        return Recording(
            text=said,
            tokens=tokens,
            layers=layers,
            model=type(self.model).__name__,
            made={"by": f"limelight {__version__}, watch", "lens": repr(self.lens)},
            layer_numbers=numbers,
            head_numbers=tuple(self.heads or range(extent.h)),
            queries=queries,
            query_text=query_text,
        )

    def _pieces(self, layer: int, stack: str | None, which: int) -> list[Piece]:
        pieces = [step.piece for step in self._steps(layer, stack, which)]
        return with_keys(pieces) if self.lens.keep else [without_source(one) for one in pieces]

    def _lines(self, stack: str | None, which: int) -> list[list[int]]:
        """For each row of the last call, the row of every call that it came from."""
        before = self._rows_before(stack, which)
        rows = self._steps(min(self._stack(stack)), stack, which)[-1].piece.seen.extent.b
        return [line_of(before, row) for row in range(rows)]

    def _line_of(
        self, stack: str | None, which: int, row: int, sequences: Tensor | None
    ) -> list[int]:
        """The row of every call that a row of the last one, or a sequence of ids, came from."""
        before = self._rows_before(stack, which)
        steps = self._steps(min(self._stack(stack)), stack, which)
        rows = steps[0].piece.seen.extent.b
        known = rows if sequences is None else _check_sequences(sequences)
        if not 0 <= row < known:
            raise OptionError(f"row must be one of 0 to {known - 1}, found {row}")
        if sequences is None:
            return line_of(before, row)
        wanted: list[int] = sequences[row].tolist()
        sources = self._sources(stack, which, rows)
        first, last = row * sources // known, -(-(row + 1) * sources // known)
        for call in range(len(steps), 0, -1):
            for one in range(first * rows // sources, last * rows // sources):
                line = line_of(before[: call - 1], one)
                ids = _joined_ids(steps[:call], line)
                if ids is not None and _became(ids, steps[0].piece.seen.extent.i, wanted):
                    return line
        raise OptionError(
            "sequences must be what generate() gave back in this pass, found ids in row "
            f"{row} that no beam of it read"
        )

    def _sources(self, stack: str | None, which: int, rows: int) -> int:
        """How many sources the rows of a target are shared out to: beams of one stand together.

        Targets of different sources may be the same ids; where there is no source, the same ids
        are the same text.
        """
        own = self._own_stacks(self._path(stack))
        if not any(is_cross(path) for path in self._tracks):
            return 1
        for path, track in self._tracks.items():
            if path not in own and not is_cross(path):
                passes = next(iter(track.values()))
                read = passes[which] if -len(passes) <= which < len(passes) else passes[-1]
                sources = read[0].piece.seen.extent.b
                return sources if rows % sources == 0 else 1
        return 1

    def _rows_before(self, stack: str | None, which: int) -> list[list[int]]:
        """For each call of a pass but the first: the row of the call before that each goes on from.

        It holds the same keys in every layer. The keys of a source are the same for all beams, so
        those of the target's own text are asked too.
        """
        path = self._path(stack)
        passes = [self._steps(layer, stack, which) for layer in self._tracks[path]]
        turn = passes[0][0].turn
        if is_cross(path) and turn:
            passes += [
                track[layer][turn - 1]
                for one in self._own_stacks(path)
                for track in [self._tracks[one]]
                for layer in track
            ]
        same = [steps for steps in passes if len(steps) == len(passes[0])]
        return rows_before(
            [
                [step.origins for step in layers if step.origins is not None]
                for layers in list(zip(*same, strict=True))[1:]
            ]
        )

    def _steps(self, layer: int, stack: str | None, which: int) -> list[_Step]:
        track = self._stack(stack)
        if layer not in track:
            raise OptionError(f"layer must be one of {sorted(track)}, found {layer}")
        passes = track[layer]
        if not -len(passes) <= which < len(passes):
            raise OptionError(f"which must be one of the {len(passes)} passes, found {which}")
        return passes[which]

    def _stack(self, stack: str | None) -> dict[int, list[list[_Step]]]:
        return self._tracks[self._path(stack)]

    def _path(self, stack: str | None) -> str:
        labels = labelled(self._tracks)
        if not labels:
            raise OptionError(
                "nothing was recorded: run the model within the block (its attention must go "
                "through the attention interface of transformers)"
            )
        if stack is None and len(labels) > 1:
            raise OptionError(f"stack must be one of {', '.join(map(repr, labels))}, found None")
        name = next(iter(labels)) if stack is None else stack
        if name not in labels:
            raise OptionError(
                f"stack must be one of {', '.join(map(repr, labels))}, found {name!r}"
            )
        return labels[name]


def _origins(before: _Step, after: _Step, place: Place) -> Tensor | None:
    """What `after` goes on from: the cache of the call before, or the next token of a target."""
    one, two = before.piece, after.piece
    if place.cross:
        follows = before.turn == after.turn and one.last_key == two.last_key
    else:
        start = two.last_key - two.seen.extent.i
        follows = start > 0 and start == one.last_key
    return origins(one, two) if follows else None


def _became(ids: list[int], prompt: int, sequence: list[int]) -> bool:
    """True where generate() gave these ids back: after them a token and padding at most.

    Some models give back what they generated without the prompt that they made themselves.
    """
    return any(
        len(own) > 0 and sequence[: len(own)] == own and len(set(sequence[len(own) + 1 :])) <= 1
        for own in (ids, ids[prompt:])
    )


def _check_sequences(sequences: Tensor) -> int:
    """How many rows of ids there are."""
    if sequences.ndim != 2 or sequences.is_floating_point():
        raise OptionError(
            f"sequences must be token ids (rows, n), found {sequences.dtype} of shape "
            f"{shape_text(sequences)}"
        )
    return len(sequences)


def _joined_ids(steps: list[_Step], line: list[int]) -> list[int] | None:
    ids: list[int] = []
    for step, row in zip(steps, line, strict=False):
        if step.ids is None:
            return None
        ids += step.row_of(step.ids, row)
    return ids
