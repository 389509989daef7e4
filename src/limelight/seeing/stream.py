"""Streamed text, and what each new token attended to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import overload

from torch import Tensor, nn

from limelight.fields import check_value
from limelight.layers.attention import Attention
from limelight.models.generation.batch import GenerativeModel
from limelight.models.generation.generate import GeneratedToken, generate_tokens
from limelight.models.generation.sampling import Sampling
from limelight.models.tokens import Tokens
from limelight.models.transformer import Transformer
from limelight.ops.calls import AttentionCall, intercept
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens
from limelight.seeing.own_models import attention_layers
from limelight.seeing.recording.join import Piece, join, without_source
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.tokens import place_tokens
from limelight.seeing.watching.padding import without_padding
from limelight.version import __version__


@overload
def stream(
    model: GenerativeModel, prompt: str, *, lens: None = None, max_tokens: int = ...,
    how: Sampling | None = ..., stop: Sequence[str] = ..., seed: int | None = ...,
) -> Iterator[str]: ...  # fmt: skip
@overload
def stream(
    model: GenerativeModel, prompt: str, *, lens: Lens, max_tokens: int = ...,
    how: Sampling | None = ..., stop: Sequence[str] = ..., seed: int | None = ...,
) -> Iterator[tuple[str, Recording]]: ...  # fmt: skip
def stream(
    model: GenerativeModel,
    prompt: str,
    *,
    lens: Lens | None = None,
    max_tokens: int = 64,
    how: Sampling | None = None,
    stop: Sequence[str] = (),
    seed: int | None = None,
) -> Iterator[str] | Iterator[tuple[str, Recording]]:
    """`generate` for one prompt, yielding the text piece by piece as it is written.

    Joined, the pieces are the text that `generate` returns; text that may become a stop string is
    held back until it is clear that it does not. Beams cannot be streamed: the best of them is
    known only at the end.

    With a lens each token comes with what it attended to while it was written: a `Recording` with
    one query, the new token, over the text before it (of a transformer: over the source). Its row
    is that of the last position, from which the new token was sampled. A piece is then empty where
    the token completes no character or may begin a stop string.

        for token, seen in ll.stream(model, "The capital of France is", lens=ll.Lens(top=8)):
            print(token, seen.top(layer=23, head=4, token=0, n=3))

    >>> import torch, limelight as ll
    >>> from limelight.models.tokens import Tokens
    >>> _ = torch.manual_seed(0)
    >>> model = ll.Decoder(ll.Config.gpt2(vocabulary=4, width=8, layers=2, heads=2)).eval()
    >>> model.tokens = Tokens.characters("abc")
    >>> for token, seen in ll.stream(model, "ab", lens=ll.Lens(top=2), max_tokens=2):
    ...     print(seen.seen(layer=1).shape)
    torch.Size([1, 2, 1, 2])
    torch.Size([1, 2, 1, 3])
    """
    check_value("lens", lens, Lens | None)
    if lens is None:
        pieces = generate_tokens(
            model, prompt, max_tokens=max_tokens, how=how, stop=stop, seed=seed
        )
        return (piece.text for piece in pieces if piece.text)
    pairs = write_seen(
        model, prompt, lens=lens, max_tokens=max_tokens, how=how, stop=stop, seed=seed
    )
    return ((written.text, recording) for written, recording in pairs)


def write_seen(
    model: GenerativeModel,
    prompt: str,
    *,
    lens: Lens,
    max_tokens: int,
    how: Sampling | None,
    stop: Sequence[str],
    seed: int | None,
) -> Iterator[tuple[GeneratedToken, Recording]]:
    """Each token as it is written, and what it attended to."""
    pieces = generate_tokens(model, prompt, max_tokens=max_tokens, how=how, stop=stop, seed=seed)
    assert model.tokens is not None  # a text was read
    return _seen(model, _Text(model.tokens, prompt), pieces, lens)


def _seen(
    model: GenerativeModel, text: _Text, pieces: Iterator[GeneratedToken], lens: Lens
) -> Iterator[tuple[GeneratedToken, Recording]]:
    layers = attention_layers(model)
    while True:
        rows = _LastRows(layers, lens)
        # Not across the yield: what the caller runs between two tokens is not recorded.
        with intercept(rows.record, locate=rows.locate):
            written = next(pieces, None)
        if written is None:
            return
        yield written, _recording(model, text, rows, written)
        text.add(written.token, source=isinstance(model, Transformer))


def _recording(
    model: GenerativeModel, text: _Text, rows: _LastRows, written: GeneratedToken
) -> Recording:
    tokens = place_tokens(text.text, text.spans, text.pieces, text.special)
    new = text.decode(written.token)
    label = text.tokens.piece(written.token)
    special = written.token in text.tokens.special
    return Recording(
        text=text.text,
        tokens=tokens,
        layers=tuple(rows.over(len(tokens))),
        model=model.name or type(model).__name__,
        made={"by": f"limelight {__version__}, stream", "lens": repr(rows.lens)},
        queries=place_tokens(new, [(0, len(new))], [label], [special]),
        query_text=new,
    )


class _LastRows:
    """What the last query of each layer saw in one step of the model."""

    def __init__(self, layers: list[Attention], lens: Lens) -> None:
        self.layers, self.lens = layers, lens
        self._seen: dict[nn.Module, Seen] = {}

    def locate(self, call: AttentionCall) -> AttentionCall | None:
        return call if call.module in self.layers else None

    def record(self, call: AttentionCall) -> Tensor:
        assert call.module is not None
        queries, keys = call.query.shape[2], call.key.shape[2]
        if queries == 1:
            output, self._seen[call.module] = call.attend(lens=self.lens)
            return output
        # The prompt: only its last row is the new token's, so `received` counts that row alone.
        output, seen = call.attend(lens=Lens())
        prompt = Piece(replace(seen, lens=replace(self.lens, keep=True)), 0)
        last = without_padding(prompt, range(queries - 1, queries), range(keys))
        self._seen[call.module] = (last if self.lens.keep else without_source(last)).seen
        return output

    def over(self, keys: int) -> list[Seen]:
        """By layer, over a text of so many keys; a sliding window holds the last of them."""
        by_layer = (self._seen[layer] for layer in self.layers)
        return [join([Piece(seen, keys - seen.extent.j)]) for seen in by_layer]


class _Text:
    """The text that is looked at, as it grows."""

    def __init__(self, tokens: Tokens, prompt: str) -> None:
        self.tokens, self.text = tokens, prompt
        encoded = tokens.encode(prompt)
        ids, self.spans, self.pieces = list(encoded.ids), list(encoded.spans), list(encoded.pieces)
        if not ids and tokens.begin is not None:
            ids, self.spans, self.pieces = [tokens.begin], [(0, 0)], [tokens.piece(tokens.begin)]
        self.special = [token in tokens.special for token in ids]
        self._stream = tokens.stream()
        self._new = ""

    def decode(self, token: int) -> str:
        """The text that a new token completes; empty for part of a character."""
        self._new = self._stream.add(token)
        return self._new

    def add(self, token: int, *, source: bool) -> None:
        """Append the token that was last decoded; a source does not grow."""
        if source:
            return
        start = len(self.text)
        self.text += self._new
        self.spans.append((start, len(self.text)))
        self.pieces.append(self.tokens.piece(token))
        self.special.append(token in self.tokens.special)
