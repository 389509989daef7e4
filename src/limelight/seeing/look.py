"""Looking at a text with a model: what every layer and head attends to."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard, overload

import torch
from torch import Tensor, nn

from limelight.checks import shape_text
from limelight.errors import OptionError, UnavailableError
from limelight.fields import check_value
from limelight.layers.attention import Attention
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.models.loading.pretrained import Model, load
from limelight.models.tokens import Encoded, Tokens
from limelight.models.transformer import Transformer
from limelight.models.vision import VisionEncoder
from limelight.ops.calls import AttentionCall, intercept
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens
from limelight.ops.masks.documents import Documents
from limelight.ops.places import stack_and_layer
from limelight.seeing.choice import LENS, check_chosen
from limelight.seeing.outside import look_outside
from limelight.seeing.picturing import is_ours, is_picture, look_at_picture
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.shelf import shelve
from limelight.seeing.recording.tokens import Token, place_tokens, plain_tokens
from limelight.seeing.steps.flow import Flow, flow_of
from limelight.version import __version__

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FLOW_LIMIT = 512
"""Tokens up to which the input and output of every layer is kept, for telling its steps."""


Input = str | Sequence[int] | Tensor
"""A text, or the token ids of one: `n`."""
Stack = Literal["encoder", "decoder", "cross"]
"""Of a model that reads a source and writes a target: the source, the target, or from it to it."""
Image = Any
"""A picture: PIL's, an array or a tensor."""


@overload
def look(
    text: Input | Image, model: str | Path | nn.Module = ..., lens: Lens = ..., *,
    target: str | None = ..., layers: Sequence[int] | None = ...,
    heads: Sequence[int] | None = ..., tokenizer: PreTrainedTokenizerBase | None = ...,
    patch: int | None = ..., stack: Stack | None = ...,
) -> Recording: ...  # fmt: skip
@overload
def look(
    text: Sequence[str], model: str | Path | nn.Module = ..., lens: Lens = ..., *,
    target: str | None = ..., layers: Sequence[int] | None = ...,
    heads: Sequence[int] | None = ..., tokenizer: PreTrainedTokenizerBase | None = ...,
) -> Iterator[Recording]: ...  # fmt: skip
def look(
    text: Input | Sequence[str] | Image,
    model: str | Path | nn.Module = "minilm",
    lens: Lens = LENS,
    *,
    target: str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    patch: int | None = None,
    stack: Stack | None = None,
) -> Recording | Iterator[Recording]:
    """Run a model on a text or a picture and record what every layer and head attends to.

    A text longer than the model's context is cut; a warning and `recording.made` say how much was
    taken. Many texts are read some at a time, without padding, and give an iterator of recordings;
    with `Lens(..., keep=False)` these are statistics alone.

    Args:
        text: what to read: a text, the token ids of one (`n`), or a list of texts. For a vision
            transformer a picture: PIL's, an array `h w 3` of uint8, which is resized to what the
            model expects and normalised, or a tensor `3 h w` of floats, which is taken as it is.
        model: a name or path for `load`, a loaded model, a Hugging Face model, or any module that
            takes token ids `b n`.
        lens: what to note of the weights.
        target: for a model that reads a source and writes a target: the target. What is recorded
            then is how the target's tokens look at the source's; without, how the source's tokens
            look at one another.
        layers: the layers to record, by number; all unless given.
        heads: the heads to record, by number; all unless given.
        tokenizer: of the Hugging Face model.
        patch: the side of the patches that the model cuts a picture into, in pixels, where it does
            not say so itself.
        stack: of a model that reads a source and writes a target, what to record instead:
            "encoder", how the source's tokens look at one another; "decoder", how those of the
            target do, as the model is given them; "cross", how the target's look at the source's.

    >>> import limelight as ll
    >>> rec = ll.look("The animal didn't cross the street because it was too tired.")
    >>> word, weight = rec.top(layer=3, head=1, token="it")[0]
    >>> word, round(weight, 3)
    ('animal', 0.677)
    >>> [len(rec.tokens) for rec in ll.look(["one text", "another text, longer"])]
    [4, 6]
    """
    check_value("lens", lens, Lens)
    if is_picture(text):
        if isinstance(model, str | Path) and is_ours(model):
            model = _loaded(str(model), _files(Path(model)))
        return look_at_picture(text, model, lens, layers, heads, patch)
    if isinstance(model, str | Path):
        model = _loaded(str(model), _files(Path(model)))
    if isinstance(model, VisionEncoder):
        raise OptionError(
            f"a VisionEncoder reads pictures (PIL's, an array or a tensor), found "
            f"{type(text).__name__}"
        )
    if stack not in (None, "encoder", "decoder", "cross"):
        raise OptionError(f"stack must be 'encoder', 'decoder' or 'cross', found {stack!r}")
    if not isinstance(text, str | Tensor) and _are_texts(text):
        return _look_at_all(text, model, lens, target, layers, heads, tokenizer, stack)
    source = _input(text)
    if isinstance(model, Encoder | Decoder | Transformer):
        recording = look_inside(model, source, target, lens, layers, heads, stack)
    else:
        recording = look_outside(model, source, target, lens, layers, heads, tokenizer, stack)
    _warn_of_cuts(recording, stacklevel=3)
    return recording


def _are_texts(text: object) -> TypeGuard[Sequence[str]]:
    return isinstance(text, Sequence) and len(text) > 0 and isinstance(text[0], str)


def _input(text: object) -> str | Tensor:
    """A text, or token ids as a tensor `n`; a LimelightError for anything else."""
    if isinstance(text, str):
        if not text.strip():
            raise OptionError("text is empty: there is nothing to attend to")
        return text
    try:
        ids = torch.as_tensor(text)
    except (TypeError, ValueError, RuntimeError):
        ids = torch.empty(0)
    if ids.ndim != 1 or not len(ids) or ids.dtype not in (torch.int64, torch.int32):
        kind = shape_text(text) if isinstance(text, Tensor) else type(text).__name__
        raise OptionError(f"text must be a str, a list of them or token ids (n), found {kind}")
    return ids.long()


def _warn_of_cuts(recording: Recording, stacklevel: int) -> None:
    for taken in (recording.made.get("taken", ""), recording.made.get("target taken", "")):
        if taken.startswith("the first"):
            warnings.warn(
                f"the text is longer than the model's context: {taken} were read",
                UserWarning,
                stacklevel=stacklevel,
            )


def _look_at_all(
    texts: Sequence[str],
    model: nn.Module,
    lens: Lens,
    target: str | None,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    tokenizer: PreTrainedTokenizerBase | None,
    stack: Stack | None,
) -> Iterator[Recording]:
    """A recording of each text, in their order."""
    sources = [_input(text) for text in texts]
    if isinstance(model, Encoder | Decoder):
        _check_stack(model, target, stack)
        return look_at_packed(model, sources, lens, layers, heads)
    if target is not None:
        raise OptionError("texts with targets are looked at one by one: look(text, target=...)")
    if isinstance(model, Transformer):
        _check_stack(model, None, stack)
        return (look_inside(model, source, None, lens, layers, heads) for source in sources)
    return (
        look_outside(model, source, None, lens, layers, heads, tokenizer, stack)
        for source in sources
    )


@lru_cache(maxsize=2)
def _loaded(name: str, _files: tuple[tuple[str, int, int, int], ...]) -> Model:
    """A notebook looks again and again with the same model, until its files change."""
    return load(name)


def _files(path: Path) -> tuple[tuple[str, int, int, int], ...]:
    """What tells one state of a model's files from another; nothing for the name of a model."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path] if path.exists() else []
    states = ((str(file), file.stat()) for file in files)
    return tuple((name, now.st_mtime_ns, now.st_size, now.st_ino) for name, now in states)


def look_inside(
    model: Model,
    text: str | Tensor,
    target: str | None,
    lens: Lens,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    stack: Stack | None = None,
) -> Recording:
    """As `look`, with one of our models; `made` alone says how much of the text was taken."""
    source = _input(text)
    _check_stack(model, target, stack)
    stack = stack or ("encoder" if target is None else "cross")
    chosen = _Chosen.of(model, layers, heads, stack)
    read = _read(model, source)
    written = None if target is None or stack == "encoder" else _read(model, target)
    keep = lens.keep and len(read.ids) <= FLOW_LIMIT
    notes = _Notes(lens, chosen.modules, keep)
    begun = None if written is None else _begun(model, written.ids)
    notes.run(model, torch.tensor([read.ids]), begun)
    if written is not None and stack == "decoder":
        read, written = _as_begun(model, written), None
    return Recording(
        text=read.text,
        tokens=read.tokens,
        layers=tuple(seen.heads(chosen.heads) for seen in notes.seen()),
        model=model.name or type(model).__name__,
        made=_made(lens, read.taken, "" if written is None else written.taken),
        layer_numbers=chosen.layers,
        head_numbers=chosen.heads,
        queries=() if written is None else written.tokens,
        query_text="" if written is None else written.text,
        flows=notes.flows(whole=len(chosen.heads) == model.config.heads),
    )


PACK = 4096
"""Tokens of several texts that are read at once."""


def look_at_packed(
    model: Encoder | Decoder,
    texts: Sequence[str | Tensor],
    lens: Lens,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Iterator[Recording]:
    """A recording of each text; texts are read some at a time, one after the other in one row.

    No text sees another. What layers take in and give out is not kept: `steps` are for one text.
    """
    chosen = _Chosen.of(model, layers, heads)
    run: list[_Read] = []
    for text in texts:
        read = _read(model, text)
        if run and sum(len(encoded.ids) for encoded in run) + len(read.ids) > PACK:
            yield from _look_at_pack(model, run, lens, chosen)
            run = []
        run.append(read)
    yield from _look_at_pack(model, run, lens, chosen)


def _look_at_pack(
    model: Encoder | Decoder, run: list[_Read], lens: Lens, chosen: _Chosen
) -> Iterator[Recording]:
    lengths = [len(read.ids) for read in run]
    notes = _PackedNotes(lens, chosen.modules, lengths)
    notes.run(model, torch.tensor([token for read in run for token in read.ids]), None)
    for number, read in enumerate(run):
        layers = (notes.packed[module][number].heads(chosen.heads) for module in chosen.modules)
        recording = Recording(
            text=read.text,
            tokens=read.tokens,
            layers=tuple(layers),
            model=model.name or type(model).__name__,
            made=_made(lens, read.taken),
            layer_numbers=chosen.layers,
            head_numbers=chosen.heads,
        )
        _warn_of_cuts(recording, stacklevel=5)
        yield recording


class _Chosen(NamedTuple):
    """The layers and heads to record."""

    modules: list[Attention]
    layers: tuple[int, ...]
    heads: tuple[int, ...]

    @classmethod
    def of(
        cls,
        model: Model,
        layers: Sequence[int] | None,
        heads: Sequence[int] | None,
        stack: Stack = "cross",
    ) -> _Chosen:
        modules = attention_layers(model, stack)
        check_chosen("layers", layers, len(modules))
        check_chosen("heads", heads, model.config.heads)
        numbers = tuple(range(len(modules)) if layers is None else layers)
        chosen = tuple(range(model.config.heads) if heads is None else heads)
        return cls([modules[number] for number in numbers], numbers, chosen)


class _Read(NamedTuple):
    """What a model takes of a text."""

    text: str
    ids: list[int]
    tokens: tuple[Token, ...]
    taken: str
    """in words, how much of the text that is"""


def _read(model: Model, text: str | Tensor) -> _Read:
    tokens, limit = model.tokens, model.config.context
    if isinstance(text, Tensor):
        return _read_ids(model, text.tolist())
    if tokens is None:
        raise UnavailableError(
            "this model came without a tokenizer: it cannot read a text, but token ids"
        )
    whole = tokens.encode(text)
    taken = f"all {len(whole.ids)} tokens"
    encoded = whole
    if len(whole.ids) > limit:
        encoded = tokens.encode(text, limit=limit)
        taken = f"the first {limit} of {len(whole.ids)} tokens"
    return _Read(text, encoded.ids, _tokens(tokens, text, encoded), taken)


def _read_ids(model: Model, ids: list[int]) -> _Read:
    """Token ids, with the text that they stand for where there is a tokenizer."""
    last, limit = model.config.vocabulary - 1, model.config.context
    if min(ids) < 0 or max(ids) > last:
        raise OptionError(f"token ids go from {min(ids)} to {max(ids)}, expected 0 to {last}")
    taken = f"all {len(ids)} tokens"
    if len(ids) > limit:
        ids, taken = ids[:limit], f"the first {limit} of {len(ids)} tokens"
    tokens = model.tokens
    if tokens is None:
        text, named = plain_tokens([str(token) for token in ids])
        return _Read(text, ids, named, taken)
    text = tokens.decode(ids)
    encoded = tokens.encode(text)
    if encoded.ids == ids:
        return _Read(text, ids, _tokens(tokens, text, encoded), taken)
    names = [tokens.tokenizer.id_to_token(token) or str(token) for token in ids]
    text, named = plain_tokens(names)
    return _Read(text, ids, named, taken)


class _Notes:
    """What some attention layers of a model saw in one pass."""

    def __init__(self, lens: Lens, modules: list[Attention], keep_flows: bool) -> None:
        self.lens, self.modules, self.keep_flows = lens, modules, keep_flows
        self.lengths: list[int] | None = None
        self._paths: dict[nn.Module, str] = {}
        self._seen: dict[nn.Module, Seen] = {}
        self._flows: dict[nn.Module, Flow] = {}

    def run(self, model: Model, source: Tensor, target: Tensor | None) -> None:
        self._paths = {module: path for path, module in model.named_modules()}
        hooks = [
            module.register_forward_hook(self._keep_flow, with_kwargs=True)
            for module in self.modules
            if self.keep_flows
        ]
        training = model.training
        model.eval()
        device = next(model.parameters()).device
        try:
            with torch.no_grad(), intercept(self._record, locate=self._locate):
                if isinstance(model, Transformer):
                    memory = model.encode(source.to(device))
                    if target is not None:
                        model.decode(target.to(device), memory)
                elif isinstance(model, Decoder):
                    model.hidden(source.to(device), lengths=self.lengths)
                elif isinstance(model, Encoder):
                    model(source.to(device), lengths=self.lengths)
        finally:
            model.train(training)
            for hook in hooks:
                hook.remove()

    def _locate(self, call: AttentionCall) -> AttentionCall:
        """The call with its layer, for interceptors around `look` that were given no model."""
        path = None if call.module is None else self._paths.get(call.module)
        if path is None:
            return call
        stack, layer = stack_and_layer(path)
        return call.replace(path=path, stack=stack, layer=layer)

    def _record(self, call: AttentionCall) -> Tensor:
        module = call.module
        if not isinstance(module, Attention) or module not in self.modules:
            return call.attend()
        if self.lens.keep:
            call = call.replace(value=_detached(call.value, call.query))
        out, seen = call.attend(lens=self.lens)
        self._seen[module] = shelve(seen, len(self.modules))
        return out

    def _keep_flow(
        self, module: nn.Module, args: Any, options: dict[str, Any], output: Tensor
    ) -> None:
        assert isinstance(module, Attention)
        memory = args[1] if len(args) > 1 else options.get("memory")
        self._flows[module] = flow_of(module, args[0], memory, output, options.get("rotation"))

    def seen(self) -> list[Seen]:
        return [self._seen[module] for module in self.modules]

    def flows(self, *, whole: bool) -> tuple[Flow, ...]:
        """Without the output unless all heads, which it is made of, were recorded as a `whole`."""
        if not self.keep_flows:
            return ()
        kept = [self._flows[module] for module in self.modules]
        return tuple(flow if whole else replace(flow, output=None) for flow in kept)


class _PackedNotes(_Notes):
    """The same of several texts that are read in one row, each by itself."""

    def __init__(self, lens: Lens, modules: list[Attention], lengths: list[int]) -> None:
        super().__init__(lens, modules, keep_flows=False)
        self.lengths = lengths
        self.packed: dict[nn.Module, list[Seen]] = {}

    def _record(self, call: AttentionCall) -> Tensor:
        if not isinstance(call.module, Attention) or call.module not in self.modules:
            return call.attend()
        assert self.lengths is not None
        mask = call.mask
        assert isinstance(mask, Documents)
        assert not isinstance(call.bias, Tensor)
        outputs: list[Tensor] = []
        for tensors in zip(
            *(x.split(self.lengths, dim=2) for x in (call.query, call.key, call.value)),
            strict=True,
        ):
            query, key, value = tensors
            part = call.replace(query=query, key=key, value=value, mask=mask.inside)
            output, seen = part.attend(lens=self.lens)
            outputs.append(output)
            self.packed.setdefault(call.module, []).append(seen)
        return torch.cat(outputs, dim=2)


def _detached(value: Tensor, query: Tensor) -> Tensor:
    """The value in a storage of its own, unless the query shares it.

    Beside a query that was turned, it is the last of a projection that would live as long as it.
    """
    storage = value.untyped_storage()
    shared = storage.data_ptr() == query.untyped_storage().data_ptr()
    return value if shared or storage.nbytes() == value.nbytes else value.clone()


def attention_layers(model: Model, stack: Stack = "cross") -> list[Attention]:
    """The attention layer of each block; of a Transformer, of this stack."""
    blocks = (
        model.stack.blocks
        if not isinstance(model, Transformer)
        else (model.encoder.blocks if stack == "encoder" else model.decoder.blocks)
    )
    crosses = isinstance(model, Transformer) and stack == "cross"
    layers: list[Attention] = []
    for block in blocks:
        layer = block.cross if crosses else block.attention
        assert isinstance(layer, Attention)
        layers.append(layer)
    return layers


def _check_stack(model: Model, target: str | None, stack: Stack | None) -> None:
    """Raise where a model has no such stack, or no target to see in it."""
    if not isinstance(model, Transformer):
        for name, value in (("target", target), ("stack", stack)):
            if value is not None:
                raise OptionError(f"a {type(model).__name__} does not take a {name}")
    elif target is None and stack not in (None, "encoder"):
        raise OptionError(f"stack={stack!r} needs a target: what the model writes")


def _begun(model: Model, target: list[int]) -> Tensor:
    """What a model is given while it writes the target: the row of a token is how it came about."""
    begin = None if model.tokens is None else model.tokens.begin
    before = [] if begin is None else [begin]
    return torch.tensor([[*before, *target][: len(target)]])


def _as_begun(model: Model, written: _Read) -> _Read:
    """The tokens that a model is given while it writes: one that begins, then all but the last."""
    begin = None if model.tokens is None else model.tokens.begin
    if model.tokens is None or begin is None:
        return written
    name = model.tokens.tokenizer.id_to_token(begin) or str(begin)
    later = [token._replace(word=token.word + 1) for token in written.tokens[:-1]]
    first = Token(name, 0, 0, 0, special=True)
    return written._replace(ids=[begin, *written.ids[:-1]], tokens=(first, *later))


def _tokens(tokens: Tokens, text: str, encoded: Encoded) -> tuple[Token, ...]:
    special = [token in tokens.special for token in encoded.ids]
    return place_tokens(text, encoded.spans, encoded.pieces, special)


def _made(lens: Lens, taken: str, aim: str = "") -> dict[str, str]:
    made = {"by": f"limelight {__version__}", "lens": repr(lens), "taken": taken}
    return {**made, "target taken": aim} if aim else made
