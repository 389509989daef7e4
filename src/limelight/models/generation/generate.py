"""Text from a decoder or a transformer, token by token."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, overload

from limelight.checks import check_whole
from limelight.errors import OptionError, UnavailableError
from limelight.fields import check_value
from limelight.models.generation.batch import GenerativeModel, generation_batch, tokens_left
from limelight.models.generation.beam import Beam, search
from limelight.models.generation.sampling import Sampling, generators
from limelight.models.tokens import Tokens, prompt_ids

Prompt = str | Sequence[int]
"""A text, or the token ids of one."""
Ended = Literal["end", "stop", "length"]
"""Why generation ended: an end token, a stop string, or a length limit."""


@dataclass(frozen=True)
class Generated:
    """What a model generated after a prompt."""

    text: str
    """without the prompt and without the stop string; empty for a model without a tokenizer"""
    ids: list[int]
    """every token that was generated, the one that ended it included"""
    ended: Ended
    """why it ended: an end token, a stop string, or a length limit"""

    def __str__(self) -> str:
        return self.text


@overload
def generate(  # pyright: ignore[reportOverlappingOverload]
    model: GenerativeModel, prompts: str, *, max_tokens: int = ..., how: Sampling | Beam = ...,
    stop: Sequence[str] = ..., seed: int | None = ...,
) -> Generated: ...  # fmt: skip
@overload
def generate(
    model: GenerativeModel, prompts: Sequence[Prompt], *, max_tokens: int = ...,
    how: Sampling | Beam = ..., stop: Sequence[str] = ..., seed: int | None = ...,
) -> list[Generated]: ...  # fmt: skip
def generate(
    model: GenerativeModel,
    prompts: str | Sequence[Prompt],
    *,
    max_tokens: int = 64,
    how: Sampling | Beam | None = None,
    stop: Sequence[str] = (),
    seed: int | None = None,
) -> Generated | list[Generated]:
    """Continue prompts, or generate targets for sources, many at a time.

    Prompts of different lengths run together; a decoder reads them packed, without padding.

        token_t ~ how(softmax(model(token_0 … token_{t−1})))

    Args:
        model: a decoder, which continues its prompts, or a transformer, whose prompts are sources;
            with its tokenizer unless prompts are ids.
        prompts: one text, or a list of texts or of token ids.
        max_tokens: how many tokens to generate at most.
        how: `Sampling(temperature=0.8, top_p=0.9)`, `Beam(4)`; greedy unless given.
        stop: the text ends before the first of these strings.
        seed: makes sampling reproducible. Each prompt has its own random generator, from the seed
            and its tokens, so it gives the same text alone and in a batch; of equal prompts in a
            batch only the first does, the others are further samples.

    Returns:
        A `Generated` for one text, a list of them for a list.

    >>> import torch, limelight as ll
    >>> _ = torch.manual_seed(0)
    >>> model = ll.Decoder(ll.Config.gpt2(vocabulary=50, width=8, layers=1, heads=2)).eval()
    >>> [len(result.ids) for result in ll.generate(model, [[1, 2, 3], [4]], max_tokens=5)]
    [5, 5]
    """
    check_options(max_tokens=max_tokens, how=how, stop=stop, seed=seed)
    if not isinstance(prompts, str | Sequence):
        raise OptionError(f"prompts must be a str or a list of prompts, found {prompts!r}")
    single = isinstance(prompts, str)
    listed: list[Prompt] = [prompts] if isinstance(prompts, str) else list(prompts)
    rows = _prompt_rows(model, listed, max_tokens, stop)
    if isinstance(how, Beam):
        results = [_search(model, row, how, max_tokens, stop) for row in rows]
    else:
        results = _sample(model, rows, how or Sampling(), max_tokens, stop, seed)
    return results[0] if single else results


class GeneratedToken(NamedTuple):
    """A token as it is generated."""

    token: int
    """its id"""
    text: str
    """the text that is final with it: empty while a character or a stop string may be incomplete"""
    ended: Ended | None
    """why it is the last; None while more follow"""


def generate_tokens(
    model: GenerativeModel,
    prompt: str,
    *,
    max_tokens: int,
    how: Sampling | None,
    stop: Sequence[str],
    seed: int | None,
) -> Iterator[GeneratedToken]:
    """`generate` for one prompt, token by token; their texts joined are the same text.

    Beams cannot be streamed: which of them is the best is known only at the end.
    """
    check_options(max_tokens=max_tokens, how=how, stop=stop, seed=seed)
    if isinstance(how, Beam):
        raise OptionError(f"how must be a Sampling for a stream, found {how!r}")
    if not isinstance(prompt, str):
        raise OptionError(f"prompt must be a str, found {type(prompt).__name__}")
    rows = _prompt_rows(model, [prompt], max_tokens, stop)
    return _stream(model, rows[0], how or Sampling(), max_tokens, stop, seed)


def _stream(
    model: GenerativeModel,
    row: list[int],
    how: Sampling,
    max_tokens: int,
    stop: Sequence[str],
    seed: int | None,
) -> Iterator[GeneratedToken]:
    output = _Output(model.tokens, stop)
    for last in _draw(model, [row], how, max_tokens, seed, lambda _, token: output.add(token)):
        text = output.take() + (output.flush() if last else "")
        yield GeneratedToken(output.ids[-1], text, output.ended if last else None)


def _sample(
    model: GenerativeModel,
    rows: list[list[int]],
    how: Sampling,
    max_tokens: int,
    stop: Sequence[str],
    seed: int | None,
) -> list[Generated]:
    outputs = [_Output(model.tokens, stop) for _ in rows]
    for _ in _draw(model, rows, how, max_tokens, seed, lambda row, token: outputs[row].add(token)):
        pass
    return [output.result() for output in outputs]


def _search(
    model: GenerativeModel, prompt: list[int], how: Beam, max_tokens: int, stop: Sequence[str]
) -> Generated:
    output = _Output(model.tokens, stop)
    end = () if model.tokens is None else model.tokens.end
    limit = tokens_left(model, prompt, max_tokens)
    tokens = search(generation_batch(model, [prompt], limit), how, limit, end) if limit else ()
    for token in tokens:
        if output.add(token):
            break
    return output.result()


def _draw(
    model: GenerativeModel,
    prompts: list[list[int]],
    how: Sampling,
    max_tokens: int,
    seed: int | None,
    add: Callable[[int, int], bool],
) -> Generator[bool]:
    """Draw a token per step for every unfinished prompt.

    `add(row, token)` receives each and returns whether the row ends with it. Yields after each
    step whether it was the last.
    """
    rngs = generators(seed, prompts)
    ids = [list(prompt) for prompt in prompts]
    left = [tokens_left(model, prompt, max_tokens) for prompt in prompts]
    active = [row for row in range(len(prompts)) if left[row]]
    if not active:
        return
    batch = generation_batch(model, [prompts[row] for row in active], max(left))
    logits = batch.begin()
    while True:
        tokens = how.draw(logits, [ids[row] for row in active], [rngs[row] for row in active])
        unfinished: list[int] = []
        for index, (row, token) in enumerate(zip(active, tokens, strict=True)):
            ids[row].append(token)
            left[row] -= 1
            if not add(row, token) and left[row]:
                unfinished.append(index)
        yield not unfinished
        if not unfinished:
            return
        if len(unfinished) < len(active):
            batch.keep(unfinished)
            active = [active[index] for index in unfinished]
        logits = batch.step([ids[row][-1] for row in active])


class _Output:
    """The tokens and the text of a row as it grows, and why it ended."""

    def __init__(self, tokens: Tokens | None, stop: Sequence[str]) -> None:
        self.ids: list[int] = []
        self.ended: Ended = "length"
        self._stop = stop
        self._end = () if tokens is None else tokens.end
        self._stream = None if tokens is None else tokens.stream()
        self._pending = ""  # may be the start of a stop string
        self._final = ""

    def add(self, token: int) -> bool:
        """Append a token; returns whether it is the last."""
        self.ids.append(token)
        if token in self._end:
            self.ended = "end"
            return True
        if self._stream is None:
            return False
        self._pending += self._stream.add(token)
        cut = min((at for s in self._stop if (at := self._pending.find(s)) >= 0), default=-1)
        if cut >= 0:
            self._final, self._pending = self._final + self._pending[:cut], ""
            self.ended = "stop"
            return True
        safe = len(self._pending) - _stop_prefix(self._pending, self._stop)
        self._final, self._pending = self._final + self._pending[:safe], self._pending[safe:]
        return False

    def take(self) -> str:
        """Remove and return the text that cannot become part of a stop string."""
        text, self._final = self._final, ""
        return text

    def flush(self) -> str:
        """Remove and return the text that was held back, once no token follows."""
        text, self._pending = self._pending, ""
        return text

    def result(self) -> Generated:
        """The whole output, once no token follows."""
        return Generated(self.take() + self.flush(), self.ids, self.ended)


def _stop_prefix(text: str, stop: Sequence[str]) -> int:
    """How many of the last characters may be the beginning of a stop string."""
    return max(
        (size for s in stop for size in range(1, len(s)) if text.endswith(s[:size])), default=0
    )


def check_options(
    *, max_tokens: int, how: Sampling | Beam | None, stop: Sequence[str], seed: int | None
) -> None:
    """Raise unless these options of `generate` are valid, whatever the model."""
    check_whole("max_tokens", max_tokens, 0)
    check_value("how", how, Sampling | Beam | None)
    check_value("seed", seed, int | None)
    listed = isinstance(stop, Sequence) and not isinstance(stop, str)
    if not listed or not all(isinstance(s, str) and s for s in stop):
        raise OptionError(f"stop must be a list of strings that are not empty, found {stop!r}")


def _prompt_rows(
    model: GenerativeModel, prompts: list[Prompt], max_tokens: int, stop: Sequence[str]
) -> list[list[int]]:
    """The prompts as token ids, checked to fit the model."""
    if not isinstance(model, GenerativeModel):
        raise OptionError(f"model must be a Decoder or a Transformer, found {type(model).__name__}")
    if stop and model.tokens is None:
        raise UnavailableError("stop strings need a tokenizer, which this model came without")
    rows: list[list[int]] = []
    for prompt in prompts:
        if not isinstance(prompt, str | Sequence):
            raise OptionError(f"a prompt must be a str or token ids, found {prompt!r}")
        row = prompt_ids(model.tokens, prompt)
        if not row and model.tokens is not None and model.tokens.begin is not None:
            row = [model.tokens.begin]
        if not row:
            raise OptionError(f"a prompt must have at least one token, found {prompt!r}")
        last = model.config.vocabulary - 1
        if min(row) < 0 or max(row) > last:
            raise OptionError(
                f"a prompt's tokens go from {min(row)} to {max(row)}, expected 0 to {last}"
            )
        rows.append(row)
        tokens_left(model, row, max_tokens)
    return rows
