"""The corpus of a run: files read, split into training and held-out text, and tokenized."""

from __future__ import annotations

import hashlib
from pathlib import Path

from limelight.errors import OptionError
from limelight.models.tokens import Tokens
from limelight.training.data import LanguageModelTask, Task
from limelight.training.distributed import Group
from limelight.training.pairs import TranslationTask
from limelight.training.settings import Settings
from limelight.training.sources import Pair, find, read_pairs, read_text
from limelight.training.vocabulary import train_tokens


class Corpus:
    """The text of a run, split into what is trained on and what is held out."""

    def __init__(self, settings: Settings, base: Path) -> None:
        data = settings.data
        self._settings = settings
        self._text: tuple[str, str] = ("", "")
        self._pairs: tuple[list[Pair], list[Pair]] = ([], [])
        files = find(data.text or data.pairs, base)
        if data.text:
            text = read_text(files)
            self._text = LanguageModelTask.split(text, data.held_out)
            self.digest = _digest([text])
        else:
            pairs = [pair for pair in read_pairs(files) if not set(data.skip) & set("".join(pair))]
            self._pairs = TranslationTask.split(pairs, data.held_out, settings.seed)
            self.digest = _digest([part for pair in pairs for part in pair])
        if not any(self._text) and not any(self._pairs):
            names = ", ".join(map(str, files[:3])) + (", …" if len(files) > 3 else "")
            raise OptionError(f"data: nothing to train on in {names}")

    def train_tokenizer(self, group: Group) -> Tokens:
        """A tokenizer trained on the training text, the same in every process."""
        paired = bool(self._settings.data.pairs)
        if paired:
            texts = [side for pair in self._pairs[0] for side in pair]
        else:
            # By lines: the tokenizer trains on many short texts in parallel.
            texts = self._text[0].splitlines(keepends=True)
        trained = train_tokens(self._settings.tokens, texts, paired=paired)
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(group.broadcast(trained.tokenizer.to_str()))
        return Tokens(tokenizer, trained.begin, trained.end)

    def task(self, tokens: Tokens) -> Task:
        """The text as tokens, ready for batches."""
        settings = self._settings
        context = settings.config(vocabulary=len(tokens)).context
        if settings.data.text:
            return LanguageModelTask.from_text(tokens, *self._text, context)
        return TranslationTask(tokens, *self._pairs, min(settings.data.max_tokens, context))


def _digest(parts: list[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()
