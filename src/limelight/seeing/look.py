"""Looking at a text with a model: what every layer and head attends to."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.errors import OptionError, UnavailableError
from limelight.layers.attention import Attention
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.models.loading.pretrained import Model, load
from limelight.models.tokens import Encoded, Tokens
from limelight.models.transformer import Transformer
from limelight.ops.calls import AttentionCall, intercept
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens
from limelight.seeing.choice import LENS, check_chosen
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.tokens import Token, place_tokens
from limelight.seeing.steps.flow import Flow, flow_of
from limelight.version import __version__

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FLOW_LIMIT = 512
"""Tokens up to which the input and output of every layer is kept, for telling its steps."""


def look(
    text: str,
    model: str | Path | Model | PreTrainedModel = "minilm",
    lens: Lens = LENS,
    *,
    target: str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Recording:
    """Read a text with a model and record what every layer and head attends to.

    A text longer than the model's context is cut; a warning and `recording.made` say how much was
    taken.

    Args:
        text: what to read.
        model: a name or path for `load`, a loaded model, or a Hugging Face model.
        lens: what to note of the weights.
        target: for a model that reads a source and writes a target: the target. What is recorded
            then is how the target's tokens look at the source's.
        layers: the layers to record, by number; all unless given.
        heads: the heads to record, by number; all unless given.
        tokenizer: of the Hugging Face model.

    >>> import limelight as ll
    >>> rec = ll.look("The animal didn't cross the street because it was too tired.")
    >>> word, weight = rec.top(layer=3, head=1, token="it")[0]
    >>> word, round(weight, 3)
    ('animal', 0.677)
    """
    if not isinstance(text, str):
        raise OptionError(f"text must be a str, found {type(text).__name__}")
    if isinstance(model, str | Path):
        model = _loaded(str(model), _files(Path(model)))
    if not isinstance(model, Encoder | Decoder | Transformer):
        return _look_outside(model, tokenizer, text, lens, layers, heads)
    if model.tokens is None:
        raise UnavailableError("this model came without a tokenizer: it cannot read a text")
    recording = look_inside(model, model.tokens, text, target, lens, layers, heads)
    for taken in (recording.made["taken"], recording.made.get("target taken", "")):
        if taken.startswith("the first"):
            warnings.warn(
                f"the text is longer than the model's context: {taken} were read",
                UserWarning,
                stacklevel=2,
            )
    return recording


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
    tokens: Tokens,
    text: str,
    target: str | None,
    lens: Lens,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Recording:
    """As `look`, with one of our models; `made` alone says how much of the text was taken."""
    _check_text(text)
    if isinstance(model, Transformer) != (target is not None):
        needs = "needs" if isinstance(model, Transformer) else "does not take"
        raise OptionError(f"a {type(model).__name__} {needs} a target")
    modules = _attention_layers(model)
    check_chosen("layers", layers, len(modules))
    check_chosen("heads", heads, model.config.heads)
    numbers = tuple(range(len(modules)) if layers is None else layers)
    chosen = tuple(range(model.config.heads) if heads is None else heads)
    limit = model.config.context
    encoded, taken = _encode(tokens, text, limit)
    written, aim = (None, "") if target is None else _encode(tokens, target, limit)
    keep = lens.keep and len(encoded.ids) <= FLOW_LIMIT
    notes = _Notes(lens, [modules[number] for number in numbers], keep)
    notes.run(model, torch.tensor([encoded.ids]), written and _shifted(tokens, written.ids))
    made = _made(lens, taken, aim)
    rows = () if written is None else _tokens(tokens, target or "", written)
    return Recording(
        text=text,
        tokens=_tokens(tokens, text, encoded),
        layers=tuple(seen.heads(chosen) for seen in notes.seen()),
        model=model.name or type(model).__name__,
        made=made,
        layer_numbers=numbers,
        head_numbers=chosen,
        queries=rows,
        query_text=target or "",
        flows=notes.flows(whole=len(chosen) == model.config.heads),
    )


def _check_text(text: str) -> None:
    if not text.strip():
        raise OptionError("text is empty: there is nothing to attend to")


class _Notes:
    """What some attention layers of a model saw in one pass."""

    def __init__(self, lens: Lens, modules: list[Attention], keep_flows: bool) -> None:
        self.lens, self.modules, self.keep_flows = lens, modules, keep_flows
        self._seen: dict[nn.Module, Seen] = {}
        self._flows: dict[nn.Module, Flow] = {}

    def run(self, model: Model, source: Tensor, target: Tensor | None) -> None:
        hooks = [
            module.register_forward_hook(self._keep_flow, with_kwargs=True)
            for module in self.modules
            if self.keep_flows
        ]
        training = model.training
        model.eval()
        device = next(model.parameters()).device
        try:
            with torch.no_grad(), intercept(self._record):
                if isinstance(model, Transformer):
                    assert target is not None
                    model(source.to(device), target.to(device))
                elif isinstance(model, Decoder):
                    model.hidden(source.to(device))
                else:
                    model(source.to(device))
        finally:
            model.train(training)
            for hook in hooks:
                hook.remove()

    def _record(self, call: AttentionCall) -> Tensor:
        if not isinstance(call.module, Attention) or call.module not in self.modules:
            return call.attend()
        out, seen = call.attend(lens=self.lens)
        self._seen[call.module] = seen
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


def _attention_layers(model: Model) -> list[Attention]:
    """The attention layer of each block; to the source where there is one."""
    stack = model.decoder if isinstance(model, Transformer) else model.stack
    layers: list[Attention] = []
    for block in stack.blocks:
        layer = block.cross if isinstance(model, Transformer) else block.attention
        assert isinstance(layer, Attention)
        layers.append(layer)
    return layers


def _encode(tokens: Tokens, text: str, limit: int) -> tuple[Encoded, str]:
    """The tokens that the model takes, and in words how much of the text that is."""
    whole = tokens.encode(text)
    if len(whole.ids) <= limit:
        return whole, f"all {len(whole.ids)} tokens"
    return tokens.encode(text, limit=limit), f"the first {limit} of {len(whole.ids)} tokens"


def _shifted(tokens: Tokens, target: list[int]) -> Tensor:
    """What a model is given while it writes the target: the row of a token is how it came about."""
    before = [] if tokens.begin is None else [tokens.begin]
    return torch.tensor([[*before, *target][: len(target)]])


def _tokens(tokens: Tokens, text: str, encoded: Encoded) -> tuple[Token, ...]:
    special = [token in tokens.special for token in encoded.ids]
    return place_tokens(text, encoded.spans, encoded.pieces, special)


def _made(lens: Lens, taken: str, aim: str = "") -> dict[str, str]:
    made = {"by": f"limelight {__version__}", "lens": repr(lens), "taken": taken}
    return {**made, "target taken": aim} if aim else made


def _look_outside(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    text: str,
    lens: Lens,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
) -> Recording:
    """A Hugging Face model, through `watch`."""
    from limelight.seeing.watching.watch import watch

    _check_text(text)
    if tokenizer is None:
        raise OptionError("a Hugging Face model needs its tokenizer= to read a text")
    inputs = tokenizer(text, return_tensors="pt").to(model.device)
    with torch.no_grad(), watch(model, lens, layers=layers, heads=heads) as watched:
        model(**inputs)
    return watched.recording(tokenizer, text=text)
