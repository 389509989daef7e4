"""`look` with limelight's own models, at one text or at several packed into one pass."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from limelight.errors import OptionError, UnavailableError
from limelight.layers.attention import Attention
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.models.loading.pretrained import Model
from limelight.models.tokens import Encoded, Tokens
from limelight.models.transformer import Transformer
from limelight.ops.call_sites import stack_and_layer
from limelight.ops.calls import AttentionCall, intercept
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens
from limelight.ops.masks.documents import Documents
from limelight.seeing.choice import check_chosen
from limelight.seeing.recording.offload import offload
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.tokens import Token, place_tokens, plain_tokens
from limelight.seeing.steps.flow import Flow, flow_of
from limelight.version import __version__

FLOW_LIMIT = 512
"""Up to this many tokens the input and output of every layer are kept, for `steps`."""

PACKED_TOKENS = 4096
"""Tokens of several texts that are read in one pass, at most."""

StackName = Literal["encoder", "decoder", "cross"]
"""Of an encoder–decoder: within the source, within the target, or from the target to the source."""


def look_with_own_model(
    model: Model,
    text: str | Tensor,
    target: str | None,
    lens: Lens,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    stack: StackName | None = None,
) -> Recording:
    """`look` without its warning: only `made` says how much of the text was read."""
    check_stack(model, target, stack)
    stack = stack or ("encoder" if target is None else "cross")
    selection = _Selection.of(model, layers, heads, stack)
    source = _tokenize(model, text)
    written = None if target is None or stack == "encoder" else _tokenize(model, target)
    keep_flows = lens.keep and len(source.ids) <= FLOW_LIMIT
    recorder = _Recorder(lens, selection.modules, keep_flows)
    target_ids = None if written is None else _shifted_right(model, written.ids)
    recorder.run(model, torch.tensor([source.ids]), target_ids)
    if written is not None and stack == "decoder":
        source, written = _as_decoder_input(model, written), None
    return Recording(
        text=source.text,
        tokens=source.tokens,
        layers=tuple(seen.heads(selection.heads) for seen in recorder.seen()),
        model=model.name or type(model).__name__,
        made=_made(lens, source.taken, "" if written is None else written.taken),
        layer_numbers=selection.layers,
        head_numbers=selection.heads,
        queries=() if written is None else written.tokens,
        query_text="" if written is None else written.text,
        flows=recorder.flows(all_heads=len(selection.heads) == model.config.heads),
    )


def warn_if_truncated(recording: Recording, stacklevel: int) -> None:
    """Warn if a text was longer than the model's context."""
    for taken in (recording.made.get("taken", ""), recording.made.get("target taken", "")):
        if taken.startswith("the first"):
            warnings.warn(
                f"the text is longer than the model's context: {taken} were read",
                UserWarning,
                stacklevel=stacklevel,
            )


def look_at_packed(
    model: Encoder | Decoder,
    texts: Sequence[str | Tensor],
    lens: Lens,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Iterator[Recording]:
    """A recording of each text; as many as fit `PACKED_TOKENS` are packed into one row and pass.

    No text sees another. Inputs and outputs of layers are not kept: `steps` needs a single text.
    """
    selection = _Selection.of(model, layers, heads)
    batch: list[_TokenizedText] = []
    for text in texts:
        tokenized = _tokenize(model, text)
        if batch and sum(len(each.ids) for each in batch) + len(tokenized.ids) > PACKED_TOKENS:
            yield from _look_at_batch(model, batch, lens, selection)
            batch = []
        batch.append(tokenized)
    yield from _look_at_batch(model, batch, lens, selection)


def _look_at_batch(
    model: Encoder | Decoder, batch: list[_TokenizedText], lens: Lens, selection: _Selection
) -> Iterator[Recording]:
    lengths = [len(text.ids) for text in batch]
    recorder = _PackedRecorder(lens, selection.modules, lengths)
    recorder.run(model, torch.tensor([token for text in batch for token in text.ids]), None)
    for number, text in enumerate(batch):
        seen = (recorder.packed[module][number] for module in selection.modules)
        recording = Recording(
            text=text.text,
            tokens=text.tokens,
            layers=tuple(layer.heads(selection.heads) for layer in seen),
            model=model.name or type(model).__name__,
            made=_made(lens, text.taken),
            layer_numbers=selection.layers,
            head_numbers=selection.heads,
        )
        warn_if_truncated(recording, stacklevel=5)
        yield recording


class _Selection(NamedTuple):
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
        stack: StackName = "cross",
    ) -> _Selection:
        modules = attention_layers(model, stack)
        layers = check_chosen("layers", layers, len(modules))
        heads = check_chosen("heads", heads, model.config.heads)
        layer_numbers = tuple(range(len(modules)) if layers is None else layers)
        head_numbers = tuple(range(model.config.heads) if heads is None else heads)
        chosen = [modules[number] for number in layer_numbers]
        return cls(chosen, layer_numbers, head_numbers)


class _TokenizedText(NamedTuple):
    """The part of a text that a model takes, in tokens."""

    text: str
    ids: list[int]
    tokens: tuple[Token, ...]
    taken: str
    """how much of the text that is, in words"""


def _tokenize(model: Model, text: str | Tensor) -> _TokenizedText:
    tokens, limit = model.tokens, model.config.context
    if isinstance(text, Tensor):
        return _tokenize_ids(model, text.tolist())
    if tokens is None:
        raise UnavailableError(
            "this model came without a tokenizer: give token ids instead of a text"
        )
    encoded = tokens.encode(text)
    total = len(encoded.ids)
    taken = f"all {total} tokens"
    if total > limit:
        encoded = tokens.encode(text, limit=limit)
        taken = f"the first {limit} of {total} tokens"
    return _TokenizedText(text, encoded.ids, _tokens(tokens, text, encoded), taken)


def _tokenize_ids(model: Model, ids: list[int]) -> _TokenizedText:
    """Token ids, with their text where there is a tokenizer."""
    last, limit = model.config.vocabulary - 1, model.config.context
    if min(ids) < 0 or max(ids) > last:
        raise OptionError(f"token ids go from {min(ids)} to {max(ids)}, expected 0 to {last}")
    taken = f"all {len(ids)} tokens"
    if len(ids) > limit:
        ids, taken = ids[:limit], f"the first {limit} of {len(ids)} tokens"
    tokens = model.tokens
    if tokens is None:
        text, named = plain_tokens([str(token) for token in ids])
        return _TokenizedText(text, ids, named, taken)
    text = tokens.decode(ids)
    encoded = tokens.encode(text)
    if encoded.ids == ids:
        return _TokenizedText(text, ids, _tokens(tokens, text, encoded), taken)
    names = [tokens.tokenizer.id_to_token(token) or str(token) for token in ids]
    text, named = plain_tokens(names)
    return _TokenizedText(text, ids, named, taken)


class _Recorder:
    """Records some attention layers of a model during one pass."""

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
            call = call.replace(value=_in_own_storage(call.value, call.query))
        out, seen = call.attend(lens=self.lens)
        self._seen[module] = offload(seen, len(self.modules))
        return out

    def _keep_flow(
        self, module: nn.Module, args: Any, options: dict[str, Any], output: Tensor
    ) -> None:
        assert isinstance(module, Attention)
        memory = args[1] if len(args) > 1 else options.get("memory")
        self._flows[module] = flow_of(module, args[0], memory, output, options.get("rotation"))

    def seen(self) -> list[Seen]:
        return [self._seen[module] for module in self.modules]

    def flows(self, *, all_heads: bool) -> tuple[Flow, ...]:
        """The input and output of each layer; the output only where all heads were recorded."""
        if not self.keep_flows:
            return ()
        kept = [self._flows[module] for module in self.modules]
        return tuple(flow if all_heads else replace(flow, output=None) for flow in kept)


class _PackedRecorder(_Recorder):
    """Records several texts that are packed into one row, each by itself."""

    def __init__(self, lens: Lens, modules: list[Attention], lengths: list[int]) -> None:
        super().__init__(lens, modules, keep_flows=False)
        self.lengths = lengths
        self.packed: dict[nn.Module, list[Seen]] = {}

    def _record(self, call: AttentionCall) -> Tensor:
        if not isinstance(call.module, Attention) or call.module not in self.modules:
            return call.attend()
        assert self.lengths is not None
        # A text by itself needs no mask that keeps others out.
        inside = call.mask.inside if isinstance(call.mask, Documents) else call.mask
        outputs: list[Tensor] = []
        start = 0
        for tensors in zip(
            *(x.split(self.lengths, dim=2) for x in (call.query, call.key, call.value)),
            strict=True,
        ):
            query, key, value = tensors
            text = slice(start, start + query.shape[2])
            # A table covers all texts, and each takes its own square; slopes are the same for all.
            bias = call.bias[..., text, text] if isinstance(call.bias, Tensor) else call.bias
            text_call = call.replace(query=query, key=key, value=value, mask=inside, bias=bias)
            output, seen = text_call.attend(lens=self.lens)
            outputs.append(output)
            start = text.stop
            self.packed.setdefault(call.module, []).append(seen)
        return torch.cat(outputs, dim=2)


def _in_own_storage(value: Tensor, query: Tensor) -> Tensor:
    """The value in a storage of its own, unless the query shares it.

    Rotation copies queries and keys: the value alone would then keep the whole projection alive.
    """
    storage = value.untyped_storage()
    shared = storage.data_ptr() == query.untyped_storage().data_ptr()
    return value if shared or storage.nbytes() == value.nbytes else value.clone()


def attention_layers(model: Model, stack: StackName = "cross") -> list[Attention]:
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


def check_stack(model: Model, target: str | None, stack: StackName | None) -> None:
    """Raise if a model has no such stack, or if the stack needs a target and there is none."""
    if not isinstance(model, Transformer):
        for name, value in (("target", target), ("stack", stack)):
            if value is not None:
                raise OptionError(f"a {type(model).__name__} does not take a {name}")
    elif target is None and stack not in (None, "encoder"):
        raise OptionError(f"stack={stack!r} needs a target: what the model writes")


def _shifted_right(model: Model, target: list[int]) -> Tensor:
    """The decoder's input while it writes the target: row t is what token t was predicted from."""
    begin = None if model.tokens is None else model.tokens.begin
    before = [] if begin is None else [begin]
    return torch.tensor([[*before, *target][: len(target)]])


def _as_decoder_input(model: Model, written: _TokenizedText) -> _TokenizedText:
    """The target as the decoder reads it: the begin token, then all tokens but the last."""
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


def _made(lens: Lens, taken: str, target_taken: str = "") -> dict[str, str]:
    made = {"by": f"limelight {__version__}", "lens": repr(lens), "taken": taken}
    return {**made, "target taken": target_taken} if target_taken else made
