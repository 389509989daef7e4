"""What was seen of a model while it was watched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor, nn

from limelight.checks import shape_text
from limelight.errors import OptionError
from limelight.ops.call_sites import CallSites, in_backward
from limelight.ops.calls import AttentionCall
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens
from limelight.seeing.choice import check_chosen
from limelight.seeing.recording.join import Piece, join
from limelight.seeing.recording.offload import offload
from limelight.seeing.recording.recording import Recording
from limelight.seeing.watching.beams import along, batch_of, in_place, line_of
from limelight.seeing.watching.hf_tokens import tokens_of_ids
from limelight.seeing.watching.inputs import InputRecorder
from limelight.seeing.watching.padding import real_run, without_padding
from limelight.seeing.watching.passes import Key, LayerCall, StackCalls
from limelight.seeing.watching.stacks import is_cross, labelled
from limelight.seeing.watching.unseen import Unseen
from limelight.version import __version__

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Watched:
    """What was seen of a model while it was watched: by stack, layer, occurrence and pass.

    A model with one stack of layers has one way of attending; an encoder-decoder has several
    (`stacks` names them: "encoder", "decoder", "cross"; where such names are ambiguous, by the path
    of their modules). A pass is a forward call and those that continue from its cache.
    A layer that attends more than once in a forward call (two halves, one image after the other, a
    loop) has several occurrences.

    In a beam search rows continue other rows. The rows of a pass are those of its last call, each
    followed back through the calls that it came from.
    """

    def __init__(
        self,
        model: nn.Module,
        lens: Lens,
        layers: Sequence[int] | None,
        heads: Sequence[int] | None,
    ) -> None:
        self.model, self.lens = model, lens
        self.sites = CallSites(model)
        count = getattr(getattr(model, "config", None), "num_attention_heads", None)
        # models with stages have a list of numbers
        heads = check_chosen("heads", heads, count if isinstance(count, int) else None)
        layers = check_chosen("layers", layers, self.sites.layers)
        self.heads = None if heads is None else list(heads)
        self.layers = None if layers is None else list(layers)
        self.inputs = InputRecorder()
        self.unseen = Unseen(self.sites)
        self.order: list[str] = []
        """the path of the module that made each call, in the order of the calls"""
        self._stacks: dict[str, StackCalls] = {}
        self._dense: set[str] = set()
        """stacks whose weights are those that the model returned"""

    def locate(self, call: AttentionCall) -> AttentionCall | None:
        """The call with its place in the model, or None where another model makes it."""
        site = self.sites.site(call.module)
        if site is None:
            return None
        self.unseen.attended(site.path)
        return call.replace(**site._replace(layer=site.layer or 0)._asdict())

    def record(self, call: AttentionCall) -> Tensor:
        """Compute a call of the model and record what it saw."""
        layer = call.layer or 0
        if in_backward() or (self.layers is not None and layer not in self.layers):
            return call.attend()
        # The keys say which pass a call continues; a lens with keep=False drops them later.
        output, seen = call.attend(lens=replace(self.lens, keep=True))
        # Not for generated tokens: their keys are a growing cache's, which is shared.
        if self.lens.keep and seen.extent.i == seen.extent.j:
            seen = offload(seen, self.sites.layers)
        self._add(call.path, call.stack, Key(layer, call.occurrence), call.forward, seen, call)
        return output

    def record_weights(self, label: str, layer: int, weights: Tensor) -> None:
        """Record weights `b h i j` that the model computed by itself and returned."""
        self.unseen.returned(label, layer)
        if self.layers is not None and layer not in self.layers:
            return
        self._dense.add(label)
        seen = Seen.of_weights(weights, self.lens)
        self._add(label, label, Key(layer, 0), self.sites.forward, seen, None)

    def _add(
        self, path: str, name: str, key: Key, forward: int, seen: Seen, call: AttentionCall | None
    ) -> None:
        if self.heads is not None:
            seen = seen.heads(self.heads)
        model = None if call is None else self.model
        stack = self._stacks.get(name)
        if stack is None:
            stack = StackCalls(name, cross=is_cross(path, model), keep=self.lens.keep)
            self._stacks[name] = stack
        first = 0 if call is None else call.first_key
        extent = seen.extent
        ids, key_ids = self.inputs.ids_for(path, extent.i), None
        real = self.inputs.real_for(path, first + extent.j)
        if stack.cross:
            key_ids, real = self.inputs.source(extent.j)
        texts_begun = sum(own.begun(key) for own in self._own_stacks(stack))
        self.order.append(path)
        stack.add(key, forward, LayerCall(Piece(seen, first), ids, key_ids, real, texts_begun))

    def _own_stacks(self, stack: StackCalls) -> list[StackCalls]:
        """The self-attention stacks in the same blocks as a stack."""
        root = stack.path.partition("*")[0]
        return [own for own in self._stacks.values() if own.path.startswith(root) and not own.cross]

    @property
    def is_dense(self) -> bool:
        """Whether some weights are those that the model computed and returned."""
        return bool(self._dense)

    @property
    def stacks(self) -> tuple[str, ...]:
        """The recorded stacks: "self", or "encoder", "decoder" and "cross"."""
        return tuple(self._labels())

    def passes(self, stack: str | None = None) -> int:
        """How many passes were recorded."""
        return len(self._stack(stack).passes)

    def calls(
        self, layer: int, stack: str | None = None, which: int = -1, occurrence: int = 0
    ) -> list[Seen]:
        """What a layer saw, call by call: the prompt, then each token."""
        stack_calls = self._stack(stack)
        pieces = stack_calls.pieces(Key(layer, occurrence), which)
        lines = self._lines(stack_calls, which, occurrence)
        if in_place(lines):
            return [piece.seen for piece in pieces]
        return [
            batch_of([piece.seen.batch_row(line[call]) for line in lines])
            for call, piece in enumerate(pieces)
        ]

    def seen(
        self,
        layer: int | str,
        stack: str | None = None,
        which: int = -1,
        occurrence: int = 0,
    ) -> Seen:
        """What a layer saw in a pass (the last unless given), its calls joined.

        Args:
            layer: its number, or the path of the module that attends, "blocks.3.attn".
            stack: which of `stacks`; needed where there are several and `layer` is a number.
            which: the pass, counted as in a list.
            occurrence: which call of the layer, where it attends several times in a forward call.
        """
        if isinstance(layer, str):
            stack, number = self.sites.stack_and_layer(layer)
            layer = number or 0
        stack_calls = self._stack(stack)
        pieces = stack_calls.pieces(Key(layer, occurrence), which)
        lines = self._lines(stack_calls, which, occurrence)
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
        occurrence: int = 0,
        row: int = 0,
        sequences: Tensor | None = None,
    ) -> Recording:
        """A pass as a recording, for views and files; of a padded batch without the padding.

        Args:
            tokenizer: names the tokens; without one they are named by their ids.
            text: the text that was read; decoded from the tokens unless given.
            stack: which of `stacks`; needed where there are several.
            which: the pass, counted as in a list.
            occurrence: which call of each layer, where layers attend several times in a forward
                call.
            row: the row of the batch.
            sequences: the token ids that generate() returned, `rows n`, after a beam search. `row`
                then counts its rows, and the beam of that row is followed, even if it ended before
                the others; without `sequences`, `row` counts the beams of the last call.
        """
        stack_calls = self._stack(stack)
        keys = stack_calls.keys(which, occurrence)
        calls = stack_calls.layer_calls(keys[0], which)
        line = self._line_of(stack_calls, which, occurrence, row, sequences)
        calls = calls[: len(line)]
        pieces = {key: along(line, stack_calls.pieces(key, which)) for key in keys}
        ids = _joined_ids(calls, line)
        first = calls[0]
        source = None if first.key_ids is None else first.row_of(first.key_ids, line[0])
        real = _real_keys(calls, line)
        if real is not None:
            queries = None if stack_calls.cross else real
            pieces = {key: _without_padding(pieces[key], queries, real) for key in keys}
            ids = ids[real.start : real.stop] if ids is not None and not stack_calls.cross else ids
            source = None if source is None else source[real.start : real.stop]
        layers = {key: join(layer_pieces) for key, layer_pieces in pieces.items()}
        _check_same_size(layers)
        extent = layers[keys[0]].extent
        queries, query_text = (), ""
        if extent.i == extent.j and not stack_calls.cross:
            decoded, tokens = tokens_of_ids(tokenizer, ids, extent.j, text)
        else:
            decoded, tokens = tokens_of_ids(tokenizer, source, extent.j, text)
            query_text, queries = tokens_of_ids(tokenizer, ids, extent.i, None)
        return Recording(
            text=decoded,
            tokens=tokens,
            layers=tuple(layers.values()),
            model=type(self.model).__name__,
            made=self._made(stack_calls),
            layer_numbers=tuple(key.layer for key in keys),
            head_numbers=tuple(self.heads or range(extent.h)),
            queries=queries,
            query_text=query_text,
        )

    def _made(self, stack: StackCalls) -> dict[str, str]:
        made = {"by": f"limelight {__version__}, watch", "lens": repr(self.lens)}
        if stack.path in self._dense:
            made["weights"] = "dense, as the model computed and returned them (output_attentions)"
        if unseen := self.unseen.description():
            made["unseen"] = unseen
        return made

    def _lines(self, stack: StackCalls, which: int, occurrence: int) -> list[list[int]]:
        """For each row of the last call, the row of every call that it came from."""
        before = stack.rows_before(which, occurrence, self._own_stacks(stack))
        calls = stack.layer_calls(stack.keys(which, occurrence)[0], which)
        return [line_of(before, row) for row in range(calls[-1].piece.seen.extent.b)]

    def _line_of(
        self, stack: StackCalls, which: int, occurrence: int, row: int, sequences: Tensor | None
    ) -> list[int]:
        """The row of every call that a row of the last one, or a sequence of ids, came from."""
        before = stack.rows_before(which, occurrence, self._own_stacks(stack))
        calls = stack.layer_calls(stack.keys(which, occurrence)[0], which)
        rows = calls[0].piece.seen.extent.b
        count = rows if sequences is None else _check_sequences(sequences)
        if not 0 <= row < count:
            raise OptionError(f"row must be one of 0 to {count - 1}, found {row}")
        if sequences is None:
            return line_of(before, row)
        sequence: list[int] = sequences[row].tolist()
        sources = self._sources(stack, which, rows)
        first, last = row * sources // count, -(-(row + 1) * sources // count)
        for length in range(len(calls), 0, -1):
            for beam in range(first * rows // sources, last * rows // sources):
                line = line_of(before[: length - 1], beam)
                ids = _joined_ids(calls[:length], line)
                if ids is not None and _was_returned(ids, calls[0].piece.seen.extent.i, sequence):
                    return line
        raise OptionError(
            "sequences must be what generate() returned in this pass, found ids in row "
            f"{row} that no beam of it read"
        )

    def _sources(self, stack: StackCalls, which: int, rows: int) -> int:
        """How many sources the rows of a target belong to: beams of one source are adjacent.

        Targets of different sources may be the same ids; where there is no source, the same ids
        are the same text.
        """
        own = self._own_stacks(stack)
        if not any(other.cross for other in self._stacks.values()):
            return 1
        for other in self._stacks.values():
            if other not in own and not other.cross:
                count = len(other.passes)
                pass_ = which if -count <= which < count else -1
                calls = other.layer_calls(other.keys(pass_, 0)[0], pass_)
                sources = calls[0].piece.seen.extent.b
                return sources if rows % sources == 0 else 1
        return 1

    def _labels(self) -> dict[str, str]:
        return labelled(
            self._stacks, [stack.path for stack in self._stacks.values() if stack.cross]
        )

    def _stack(self, stack: str | None) -> StackCalls:
        labels = self._labels()
        if not labels:
            raise self.unseen.error()
        if stack in self._stacks:
            return self._stacks[stack]
        if stack is None and len(labels) > 1:
            raise OptionError(f"stack must be one of {', '.join(map(repr, labels))}, found None")
        name = next(iter(labels)) if stack is None else stack
        if name not in labels:
            raise OptionError(
                f"stack must be one of {', '.join(map(repr, labels))}, found {name!r}"
            )
        return self._stacks[labels[name]]


def _real_keys(calls: list[LayerCall], line: list[int]) -> range | None:
    """The keys of a line that are tokens, if some of its keys are padding."""
    last, row = calls[-1], line[len(calls) - 1]
    if last.real is None:
        return None
    real = last.real[row * len(last.real) // last.piece.seen.extent.b]
    return None if bool(real.all()) else real_run(real)


def _without_padding(pieces: list[Piece], queries: range | None, keys: range) -> list[Piece]:
    """The pieces of one line without its padding; `queries` is None where queries have none."""
    kept: list[Piece] = []
    for piece in pieces:
        rows = range(piece.seen.extent.i)
        if queries is not None:
            start = piece.last_key - len(rows)
            first = max(queries.start - start, 0)
            rows = range(first, max(first, min(queries.stop - start, len(rows))))
        if len(rows):
            kept.append(without_padding(piece, rows, keys))
    return kept


def _check_same_size(layers: dict[Key, Seen]) -> None:
    """Raise if the layers of a stack read texts or pictures of different sizes."""
    sizes = {tuple(seen.extent) for seen in layers.values()}
    if len(sizes) > 1:
        extents = ", ".join(f"{key.layer}: {tuple(seen.extent)}" for key, seen in layers.items())
        raise OptionError(
            "the layers of this stack read inputs of different sizes, which cannot be one "
            f"recording; found (b, h, i, j) by layer {extents}. Watch them with layers=[...], or "
            "use seen(layer)"
        )


def _was_returned(ids: list[int], prompt: int, sequence: list[int]) -> bool:
    """Whether generate() returned these ids in a sequence, then at most a token and padding.

    Some models leave out a prompt that they made themselves.
    """
    return any(
        len(read) > 0 and sequence[: len(read)] == read and len(set(sequence[len(read) + 1 :])) <= 1
        for read in (ids, ids[prompt:])
    )


def _check_sequences(sequences: Tensor) -> int:
    """How many rows of ids there are."""
    if sequences.ndim != 2 or sequences.is_floating_point():
        raise OptionError(
            f"sequences must be token ids (rows, n), found {sequences.dtype} of shape "
            f"{shape_text(sequences)}"
        )
    return len(sequences)


def _joined_ids(calls: list[LayerCall], line: list[int]) -> list[int] | None:
    """The ids that the queries of a line read, call after call."""
    ids: list[int] = []
    for call, row in zip(calls, line, strict=False):
        if call.ids is None:
            return None
        ids += call.row_of(call.ids, row)
    return ids
