"""Text to token ids and back, each token with its span in the text."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from limelight.errors import FileError, OptionError, UnavailableError
from limelight.fields import as_list
from limelight.files import check_path, read_text, writing
from limelight.models.chat import render

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Encoded(NamedTuple):
    """A text as token ids; token t is `text[spans[t][0] : spans[t][1]]`."""

    ids: list[int]
    spans: list[tuple[int, int]]
    """Start and end of each token, in characters; (0, 0) for tokens that are not in the text."""
    pieces: list[str]
    """Each token as the vocabulary writes it."""


@dataclass(frozen=True)
class Tokens:
    """A tokenizer of the `tokenizers` library, with the ids that open a text and end a generation.

    >>> tokens = Tokens.characters("abc ")
    >>> tokens.encode("cab").ids
    [4, 2, 3]
    >>> tokens.decode([4, 2, 3])
    'cab'
    """

    tokenizer: Tokenizer
    begin: int | None = None
    """Opens a text (Llama's `<s>`), or None."""
    end: tuple[int, ...] = ()
    """Any of these ends a generation."""
    chat_template: str | None = field(default=None, repr=False)
    """Jinja source that turns a conversation into a prompt."""
    trained: int | None = None
    """Tokens that texts were truncated to in training, special ones included, if the file says."""

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, text: str, *, limit: int | None = None) -> Encoded:
        """The ids of a text, with the tokenizer's special tokens, and their spans.

        With a `limit` the text is truncated so that there are at most so many, special tokens
        included.
        """
        return self.encode_all([text], limit=limit)[0]

    def encode_all(self, texts: Sequence[str], *, limit: int | None = None) -> list[Encoded]:
        """`encode` for many texts at once, on all cores."""
        encodings = self.tokenizer.encode_batch(_checked(texts))
        kept = [self._truncate(text, e, limit) for text, e in zip(texts, encodings, strict=True)]
        return [Encoded(e.ids, e.offsets, e.tokens) for e in kept]

    def ids_of(self, texts: Sequence[str], *, limit: int | None = None) -> list[list[int]]:
        """Only the ids of many texts, which is faster than with their spans."""
        encodings = self.tokenizer.encode_batch_fast(_checked(texts))
        kept = [self._truncate(text, e, limit) for text, e in zip(texts, encodings, strict=True)]
        return [e.ids for e in kept]

    def _truncate(self, text: str, encoding: Any, limit: int | None) -> Any:
        if limit is None or len(encoding) <= limit:
            return encoding
        # Truncated before the special tokens are added, so that a closing [SEP] stays.
        body = self.tokenizer.encode(text, add_special_tokens=False)
        body.truncate(max(limit - self.tokenizer.num_special_tokens_to_add(False), 0))
        return self.tokenizer.post_process(body)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; special tokens are left out."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def piece(self, token: int) -> str:
        """A token as the vocabulary writes it."""
        piece = self.tokenizer.id_to_token(token) if 0 <= token < 1 << 32 else None
        if piece is None:
            raise OptionError(f"token must be an id below {len(self)}, found {token}")
        return piece

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt of a conversation, up to where the assistant's reply begins.

        A message is `{"role": "user" | "system" | "assistant", "content": "..."}`. `generate` does
        not apply the template: it continues the prompt it is given.
        """
        if self.chat_template is None:
            raise UnavailableError("this model has no chat template: pass a plain prompt")
        return render(
            self.chat_template,
            {
                "messages": [dict(message) for message in messages],
                "add_generation_prompt": True,
                "bos_token": "" if self.begin is None else self.piece(self.begin),
                "eos_token": self.piece(self.end[0]) if self.end else "",
            },
        )

    def stream(self) -> TextStream:
        """A decoder that takes one id at a time and returns text in whole characters."""
        return TextStream(self)

    def save(self, path: str | Path) -> None:
        """Write `tokenizer.json`, replacing the file atomically."""
        with writing(path) as temporary:
            temporary.write_text(self.tokenizer.to_str(), encoding="utf-8")

    @classmethod
    def characters(cls, text: str) -> Tokens:
        """A tokenizer with one token for each character that occurs in `text`; id 0 is unknown."""
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

        vocabulary = {"\N{REPLACEMENT CHARACTER}": 0}
        for character in sorted(set(text) - vocabulary.keys()):
            vocabulary[character] = len(vocabulary)
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="\N{REPLACEMENT CHARACTER}"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        tokenizer.decoder = decoders.Fuse()
        return cls(tokenizer)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        begin: int | None = None,
        end: Sequence[int] = (),
        chat_template: str | None = None,
    ) -> Tokens:
        """Read a `tokenizer.json`."""
        from tokenizers import Tokenizer

        path = check_path(path)
        text = read_text(path)
        try:
            tokenizer = Tokenizer.from_str(text)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plain Exception, or a panic in Rust
            raise FileError(f"{path}: not a tokenizer.json that can be read: {error}") from error
        count = tokenizer.get_vocab_size()
        if not count:
            raise FileError(f"{path}: its vocabulary is empty")
        # A config may name ids that the tokenizer does not have, by default or as -1.
        begin = begin if begin is not None and 0 <= begin < count else None
        end = [token for token in end if 0 <= token < count]
        truncation = tokenizer.truncation
        # Padding and truncation are up to the caller, whatever the file sets.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        trained = None if truncation is None else truncation["max_length"]
        return cls(tokenizer, begin, tuple(end), chat_template, trained)

    @cached_property
    def special(self) -> frozenset[int]:
        """The ids of special tokens, which stand for no text."""
        added = self.tokenizer.get_added_tokens_decoder()
        return frozenset(token for token, entry in added.items() if entry.special)


class TextStream:
    """Decodes ids one by one; a character is returned with the id that completes it."""

    def __init__(self, tokens: Tokens) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokens.tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def add(self, token: int) -> str:
        """The text that this token completes, often empty for part of a character."""
        return self._stream.step(self._tokenizer, token) or ""


def prompt_ids(tokens: Tokens | None, prompt: str | Sequence[int]) -> list[int]:
    """A prompt as ids: text goes through the tokenizer, ids stay."""
    if not isinstance(prompt, str):
        try:
            # Not int(), which would truncate 1.5 to 1.
            return [operator.index(token) for token in prompt]
        except TypeError:
            raise OptionError(f"token ids must be whole numbers, found {prompt!r}") from None
    if tokens is None:
        raise UnavailableError("this model came without a tokenizer: pass the prompt as token ids")
    return tokens.encode(prompt).ids


def _checked(texts: Sequence[str]) -> list[str]:
    texts = as_list("texts", texts)
    for text in texts:
        if not isinstance(text, str):
            raise OptionError(f"a text must be a str, found {type(text).__name__}")
        # Bytes that are not UTF-8 arrive from the system as lone surrogates.
        surrogate = _SURROGATE.search(text)
        if surrogate is not None:
            raise OptionError(
                f"a text must be Unicode, found a byte or half a character at "
                f"character {surrogate.start()}: {text[max(0, surrogate.start() - 10) :][:20]!r}"
            )
    return texts


_SURROGATE = re.compile("[\ud800-\udfff]")
