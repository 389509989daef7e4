"""Watching a Hugging Face model that is already loaded."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from limelight.ops.lens import Lens
from limelight.ops.seen import Seen
from limelight.seeing.choice import LENS, check_chosen
from limelight.seeing.hf_tokens import tokens_of_ids
from limelight.seeing.huggingface import NAME, Watcher, register, watchers
from limelight.seeing.join import Piece, continues, join, own_keys, with_keys, without_keys
from limelight.seeing.recording import Recording
from limelight.seeing.stacks import Place, is_cross, labelled, place_of
from limelight.shapes import OptionError, UnavailableError
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
    _check_model(model)
    watched = Watched(model, lens, layers, heads)
    configs = _set_implementation(model)
    hooks = watched.hooks()
    for module in watched.places:
        watchers[module] = Watcher(lens, watched.note)
    try:
        yield watched
    finally:
        for module in watched.places:
            watchers.pop(module, None)
        for hook in hooks:
            hook.remove()
        for config, before in configs:
            config._attn_implementation_internal = before


class Watched:
    """What was seen of a model while it was watched: by stack, layer and pass.

    A model with one stack of layers has one way of attending; an encoder-decoder has several
    (`stacks` names them: "encoder", "decoder", "cross"). A pass is a forward call and those that
    go on from its cache.
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
        check_chosen("heads", heads, getattr(model.config, "num_attention_heads", None))
        check_chosen("layers", layers, getattr(model.config, "num_hidden_layers", None))
        names = {module: name for name, module in model.named_modules()}
        self.places = {
            module: place
            for module, name in names.items()
            if (place := place_of(name)) is not None and (layers is None or place.layer in layers)
        }
        taken = [module for module in self.places if module in watchers]
        if taken:
            raise OptionError("model is being watched already: leave that block first")
        self._names = names
        self._tracks: dict[str, dict[int, list[list[_Step]]]] = {}
        self._ids: dict[str, Tensor] = {}

    def hooks(self) -> list[Any]:
        """Note the token ids that each model within the model is given."""
        from transformers import PreTrainedModel

        def note_ids(module: nn.Module, args: Any, options: dict[str, Any]) -> None:
            ids = options.get("input_ids", args[0] if args else None)
            if isinstance(ids, Tensor) and not ids.is_floating_point() and ids.ndim == 2:
                self._ids[self._names[module]] = ids.detach()
            else:
                self._ids.pop(self._names[module], None)

        return [
            module.register_forward_pre_hook(note_ids, with_kwargs=True)
            for module in self.model.modules()
            if isinstance(module, PreTrainedModel)
        ]

    def note(self, module: nn.Module, seen: Seen, first_key: int) -> None:
        """Take down what a module saw; attention calls this."""
        place = self.places[module]
        if self.heads is not None:
            seen = seen.heads(self.heads)
        ids = self._ids_for(self._names[module], seen.extent.i)
        key_ids = self._source_ids(seen.extent.j) if place.cross else None
        passes = self._tracks.setdefault(place.stack, {}).setdefault(place.layer, [])
        step = _Step(own_keys(Piece(seen, first_key)), ids, key_ids, self._turn(place))
        if passes and _goes_on(passes[-1][-1], step, place):
            last = passes[-1]
            last[-1] = last[-1]._replace(piece=without_keys(last[-1].piece, step.piece))
            last.append(step)
        else:
            passes.append([step])

    def _turn(self, place: Place) -> int:
        root = place.stack.partition("*")[0]
        return sum(
            len(track.get(place.layer, []))
            for stack, track in self._tracks.items()
            if stack.startswith(root) and not is_cross(stack)
        )

    @property
    def stacks(self) -> tuple[str, ...]:
        """What there is to see: "self", or "encoder", "decoder" and "cross"."""
        return tuple(labelled(self._tracks))

    def passes(self, stack: str | None = None) -> int:
        """How many passes were recorded."""
        return len(next(iter(self._stack(stack).values())))

    def calls(self, layer: int, stack: str | None = None, which: int = -1) -> list[Seen]:
        """What a layer saw, call by call: the prompt, then each token."""
        return [piece.seen for piece in self._pieces(layer, stack, which)]

    def seen(self, layer: int, stack: str | None = None, which: int = -1) -> Seen:
        """What a layer saw in a pass (the last unless told otherwise), its calls put together."""
        return join(self._pieces(layer, stack, which))

    def recording(
        self,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        text: str | None = None,
        stack: str | None = None,
        which: int = -1,
        row: int = 0,
    ) -> Recording:
        """A pass as a recording, for views and files.

        Args:
            tokenizer: names the tokens; they are called by their ids without.
            text: the text that was read; put together from the tokens unless given.
            stack: which of `stacks`; needed where there are several.
            which: the pass, counted as in a list.
            row: the row of the batch.
        """
        numbers = tuple(sorted(self._stack(stack)))
        layers = tuple(self.seen(number, stack, which).batch_row(row) for number in numbers)
        steps = self._steps(numbers[0], stack, which)
        ids = _joined_ids(steps, row)
        extent = layers[0].extent
        queries, query_text = (), ""
        if extent.i == extent.j and not is_cross(self._path(stack)):
            said, tokens = tokens_of_ids(tokenizer, ids, extent.j, text)
        else:
            key_ids = steps[0].key_ids
            keys = None if key_ids is None else key_ids[row].tolist()
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
        return with_keys([step.piece for step in self._steps(layer, stack, which)])

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

    def _ids_for(self, name: str, size: int) -> Tensor | None:
        """What the innermost model around a module was given, if it fits."""
        around = [one for one in self._ids if one == "" or name.startswith(one + ".")]
        for one in sorted(around, key=len, reverse=True):
            if self._ids[one].shape[1] == size:
                return self._ids[one]
        return None

    def _source_ids(self, size: int) -> Tensor | None:
        for name, ids in self._ids.items():
            if "encoder" in name.lower() and ids.shape[1] == size:
                return ids
        return None


def _goes_on(before: _Step, after: _Step, place: Place) -> bool:
    """True where a call follows the one before: from its cache, or the next token of a target."""
    one, two = before.piece, after.piece
    if place.cross:
        return before.turn == after.turn and one.last_key == two.last_key and continues(one, two)
    start = two.last_key - two.seen.extent.i
    return start > 0 and start == one.last_key and continues(one, two)


def _joined_ids(steps: list[_Step], row: int) -> list[int] | None:
    ids: list[int] = []
    for step in steps:
        if step.ids is None:
            return None
        ids += step.ids[row if len(step.ids) > 1 else 0].tolist()
    return ids


def _check_model(model: object) -> None:
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise OptionError(
            f"model must be a Hugging Face model, found {type(model).__name__}; "
            "look(text, model=...) records our own"
        )
    for part in model.modules():
        # transformers has no public way to ask; to try and fail would leave a warning behind.
        if isinstance(part, PreTrainedModel) and not part._can_set_attn_implementation():  # pyright: ignore[reportPrivateUsage]
            raise UnavailableError(
                f"{type(part).__name__} computes its attention by itself instead of through the "
                "attention interface of transformers, so it cannot be watched. What can be done: "
                'run it with attn_implementation="eager" and output_attentions=True, and give '
                "the dense weights to Recording.of_weights"
            )


def _set_implementation(model: PreTrainedModel) -> list[tuple[Any, str | None]]:
    """Switch to limelight's attention; what each config said before, to be put back."""
    configs: dict[int, tuple[Any, str | None]] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation_internal"):
            configs[id(config)] = (config, config._attn_implementation_internal)  # pyright: ignore[reportOptionalMemberAccess]
    model.set_attn_implementation(NAME)
    return list(configs.values())
