"""From settings to something to learn: files read, split, and cut into tokens."""

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
from limelight.training.vocabulary import make_tokens


class Corpus:
    """The text of a run, split into what is learned from and what is held out."""

    def __init__(self, settings: Settings, beside: Path) -> None:
        data = settings.data
        self._settings = settings
        self._text: tuple[str, str] = ("", "")
        self._pairs: tuple[list[Pair], list[Pair]] = ([], [])
        files = find(data.text or data.pairs, beside)
        if data.text:
            text = read_text(files)
            self._text = LanguageModelTask.split(text, data.held_out)
            self.digest = _digest([text])
        else:
            read = read_pairs(files)
            pairs = [pair for pair in read if not set(data.skip) & set("".join(pair))]
            self._pairs = TranslationTask.split(pairs, data.held_out, settings.seed)
            self.digest = _digest([part for pair in pairs for part in pair])
        if not any(self._text) and not any(self._pairs):
            some = ", ".join(map(str, files[:3])) + (", …" if len(files) > 3 else "")
            raise OptionError(f"data: nothing to learn from in {some}")

    def learn_tokens(self, group: Group) -> Tokens:
        """A tokenizer learned from the part that is learned from, the same in every process."""
        paired = bool(self._settings.data.pairs)
        if paired:
            learned = [side for pair in self._pairs[0] for side in pair]
        else:
            # Lines: the tokenizer learns from many short texts on all cores.
            learned = self._text[0].splitlines(keepends=True)
        made = make_tokens(self._settings.tokens, learned, paired=paired)
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(group.tell(made.tokenizer.to_str()))
        return Tokens(tokenizer, made.begin, made.end)

    def task(self, tokens: Tokens) -> Task:
        """The text as tokens, ready for batches."""
        settings = self._settings
        context = settings.config(vocabulary=len(tokens)).context
        if settings.data.text:
            return LanguageModelTask.of(tokens, *self._text, context)
        return TranslationTask(tokens, *self._pairs, min(settings.data.longest, context))


def _digest(parts: list[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()
