"""Text out of a decoder, token by token."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, overload

from limelight.checks import check_whole
from limelight.errors import OptionError, UnavailableError
from limelight.fields import check_value
from limelight.models.generation.beam import Beam, search
from limelight.models.generation.reader import Writer, read, tokens_left
from limelight.models.generation.sampling import Sampling, generators
from limelight.models.tokens import Tokens, prompt_ids

Prompt = str | Sequence[int]
"""A text, or the token ids of one."""
Ended = Literal["end", "stop", "length"]
"""Why nothing more is written: an end token, a stop string, or a length limit."""


@dataclass(frozen=True)
class Generated:
    """What a model wrote after a prompt."""

    text: str
    """without the prompt and without the stop string; empty for a model without a tokenizer"""
    ids: list[int]
    """every token that was drawn, the one that ended it included"""
    ended: Ended
    """by an end token, a stop string, or a length limit"""

    def __str__(self) -> str:
        return self.text


@overload
def generate(  # pyright: ignore[reportOverlappingOverload]
    model: Writer, prompts: str, *, max_tokens: int = ..., how: Sampling | Beam = ...,
    stop: Sequence[str] = ..., seed: int | None = ...,
) -> Generated: ...  # fmt: skip
@overload
def generate(
    model: Writer, prompts: Sequence[Prompt], *, max_tokens: int = ..., how: Sampling | Beam = ...,
    stop: Sequence[str] = ..., seed: int | None = ...,
) -> list[Generated]: ...  # fmt: skip
def generate(
    model: Writer,
    prompts: str | Sequence[Prompt],
    *,
    max_tokens: int = 64,
    how: Sampling | Beam | None = None,
    stop: Sequence[str] = (),
    seed: int | None = None,
) -> Generated | list[Generated]:
    """Continue prompts, or write targets to sources, many at a time.

    Prompts of different length run together, packed without padding.

        token_t ~ how(softmax(model(token_0 … token_{t−1})))

    Args:
        model: a decoder, which continues its prompts, or a transformer, whose prompts are sources;
            with its tokenizer unless prompts are ids.
        prompts: one text, or a list of texts or of token ids.
        max_tokens: how many tokens to write at most.
        how: `Sampling(temperature=0.8, top_p=0.9)`, `Beam(4)`; greedy unless given.
        stop: writing ends before the first of these strings.
        seed: makes sampling repeatable. Each prompt has its own random generator, from the seed and
            its tokens, so it gives the same text alone and in a batch; of equal prompts in a batch
            the first does, the others are further samples.

    Returns:
        A `Generated` for one text, a list of them for a list.

    >>> import torch, limelight as ll
    >>> _ = torch.manual_seed(0)
    >>> model = ll.Decoder(ll.Config.gpt2(vocabulary=50, width=8, layers=1, heads=2)).eval()
    >>> [len(answer.ids) for answer in ll.generate(model, [[1, 2, 3], [4]], max_tokens=5)]
    [5, 5]
    """
    check_options(max_tokens=max_tokens, how=how, stop=stop, seed=seed)
    if not isinstance(prompts, str | Sequence):
        raise OptionError(f"prompts must be a str or a list of prompts, found {prompts!r}")
    single = isinstance(prompts, str)
    listed: list[Prompt] = [prompts] if isinstance(prompts, str) else list(prompts)
    rows = _rows(model, listed, max_tokens, stop)
    if isinstance(how, Beam):
        answers = [_follow(model, row, how, max_tokens, stop) for row in rows]
    else:
        answers = _sample(model, rows, how or Sampling(), max_tokens, stop, seed)
    return answers[0] if single else answers


class Written(NamedTuple):
    """A token as it is written."""

    token: int
    """its id"""
    text: str
    """what can be shown with it: empty while a character or a stop string may still be completed"""
    ended: Ended | None
    """why it is the last; None while more follow"""


def write(
    model: Writer,
    prompt: str,
    *,
    max_tokens: int,
    how: Sampling | None,
    stop: Sequence[str],
    seed: int | None,
) -> Iterator[Written]:
    """`generate` for one prompt, token by token; their texts put together are the same text.

    Beams cannot be written so: which of them is the best is known only at the end.
    """
    check_options(max_tokens=max_tokens, how=how, stop=stop, seed=seed)
    if isinstance(how, Beam):
        raise OptionError(f"how must be a Sampling for a stream, found {how!r}")
    if not isinstance(prompt, str):
        raise OptionError(f"prompt must be a str, found {type(prompt).__name__}")
    rows = _rows(model, [prompt], max_tokens, stop)
    return _write(model, rows[0], how or Sampling(), max_tokens, stop, seed)


def _write(
    model: Writer, row: list[int], how: Sampling, most: int, stop: Sequence[str], seed: int | None
) -> Iterator[Written]:
    ending = _Ending(model.tokens, stop)
    draws = _draw(model, [row], how, most, seed, lambda _, token: ending.add(token))
    for last in draws:
        text = ending.take() + (ending.rest() if last else "")
        yield Written(ending.ids[-1], text, ending.why if last else None)


def _sample(
    model: Writer,
    rows: list[list[int]],
    how: Sampling,
    most: int,
    stop: Sequence[str],
    seed: int | None,
) -> list[Generated]:
    endings = [_Ending(model.tokens, stop) for _ in rows]
    for _ in _draw(model, rows, how, most, seed, lambda row, token: endings[row].add(token)):
        pass
    return [Generated(ending.take() + ending.rest(), ending.ids, ending.why) for ending in endings]


def _draw(
    model: Writer,
    prompts: list[list[int]],
    how: Sampling,
    most: int,
    seed: int | None,
    ends: Callable[[int, int], bool],
) -> Generator[bool]:
    """Draw one token a step for each unfinished prompt; `ends(row, token)` takes each.

    Yields after each step whether it was the last.
    """
    rngs = generators(seed, prompts)
    before = [list(prompt) for prompt in prompts]
    left = [tokens_left(model, prompt, most) for prompt in prompts]
    active = [row for row in range(len(prompts)) if left[row]]
    if not active:
        return
    reader = read(model, [prompts[row] for row in active], max(left))
    logits = reader.begin()
    while True:
        drawn = how.draw(logits, [before[row] for row in active], [rngs[row] for row in active])
        going: list[int] = []
        for place, (row, token) in enumerate(zip(active, drawn, strict=True)):
            before[row].append(token)
            left[row] -= 1
            if not ends(row, token) and left[row]:
                going.append(place)
        yield not going
        if not going:
            return
        if len(going) < len(active):
            reader.keep(going)
            active = [active[place] for place in going]
        logits = reader.step([before[row][-1] for row in active])


class _Ending:
    """The text of a row as it grows, and whether it has ended."""

    def __init__(self, tokens: Tokens | None, stop: Sequence[str]) -> None:
        self.ids: list[int] = []
        self.why: Ended = "length"
        self._stop = stop
        self._end = () if tokens is None else tokens.end
        self._stream = None if tokens is None else tokens.stream()
        self._held = ""
        self._ready = ""

    def add(self, token: int) -> bool:
        """Take a token; whether it is the last."""
        self.ids.append(token)
        if token in self._end:
            self.why = "end"
            return True
        if self._stream is None:
            return False
        self._held += self._stream.add(token)
        cut = min((at for s in self._stop if (at := self._held.find(s)) >= 0), default=-1)
        if cut >= 0:
            self._ready, self._held, self.why = self._ready + self._held[:cut], "", "stop"
            return True
        safe = len(self._held) - _maybe(self._held, self._stop)
        self._ready, self._held = self._ready + self._held[:safe], self._held[safe:]
        return False

    def take(self) -> str:
        """The text that no stop string can take back, once."""
        text, self._ready = self._ready, ""
        return text

    def rest(self) -> str:
        """What was held back, once nothing more comes."""
        text, self._held = self._held, ""
        return text


def _maybe(text: str, stop: Sequence[str]) -> int:
    """How many of the last characters may be the beginning of a stop string."""
    return max(
        (size for s in stop for size in range(1, len(s)) if text.endswith(s[:size])), default=0
    )


def _follow(
    model: Writer, prompt: list[int], how: Beam, most: int, stop: Sequence[str]
) -> Generated:
    ending = _Ending(model.tokens, stop)
    end = () if model.tokens is None else model.tokens.end
    most = tokens_left(model, prompt, most)
    for token in search(read(model, [prompt], most), how, most, end) if most else ():
        if ending.add(token):
            break
    return Generated(ending.take() + ending.rest(), ending.ids, ending.why)


def check_options(
    *, max_tokens: int, how: Sampling | Beam | None, stop: Sequence[str], seed: int | None
) -> None:
    """Raise unless these options of `generate` make sense, for whatever model."""
    check_whole("max_tokens", max_tokens, 0)
    check_value("how", how, Sampling | Beam | None)
    check_value("seed", seed, int | None)
    listed = isinstance(stop, Sequence) and not isinstance(stop, str)
    if not listed or not all(isinstance(s, str) and s for s in stop):
        raise OptionError(f"stop must be a list of strings that are not empty, found {stop!r}")


def _rows(
    model: Writer, prompts: list[Prompt], max_tokens: int, stop: Sequence[str]
) -> list[list[int]]:
    """The prompts as token ids, known to fit the model."""
    if not isinstance(model, Writer):
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
