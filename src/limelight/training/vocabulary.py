"""A tokenizer for a corpus: characters, or byte-pair encoding trained on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from limelight.errors import OptionError
from limelight.models.tokens import Tokens
from limelight.training.settings import TokenSettings

BEGIN, END = "<begin>", "<end>"


def train_tokens(settings: TokenSettings, texts: Iterable[str], *, paired: bool) -> Tokens:
    """A tokenizer trained on `texts`.

    For pairs, every encoded text ends with an end token, and a begin token starts a translation.

    Args:
        settings: its kind and maximal size.
        texts: the training text, without the held-out text.
        paired: whether the texts are sides of pairs rather than running text.

    >>> tokens = train_tokens(TokenSettings(), ["abc"], paired=True)
    >>> [tokens.piece(token) for token in tokens.encode("cab").ids]
    ['c', 'a', 'b', '<end>']
    """
    if settings.kind == "characters":
        tokens = Tokens.characters("".join(sorted(set().union(*texts))))
    else:
        tokens = _byte_pairs(settings.size, texts, paired=paired)
    return with_ends(tokens) if paired else tokens


def with_ends(tokens: Tokens) -> Tokens:
    """The same tokenizer with a begin and an end token, which is appended to every text."""
    from tokenizers.processors import Sequence, TemplateProcessing

    tokenizer = tokens.tokenizer
    tokenizer.add_special_tokens([BEGIN, END])
    vocabulary = tokenizer.get_vocab()
    begin, end = vocabulary[BEGIN], vocabulary[END]
    template = TemplateProcessing(single=f"$A {END}", special_tokens=[(END, end)])
    before = tokenizer.post_processor
    tokenizer.post_processor = template if before is None else Sequence([before, template])
    return Tokens(tokenizer, begin=begin, end=(end,))


def _byte_pairs(size: int, texts: Iterable[str], *, paired: bool) -> Tokens:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    # In short texts a word often comes first: with a space before it, it is the same token there.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=paired)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    decoder = decoders.ByteLevel()
    tokenizer.decoder = (
        decoders.Sequence([decoder, decoders.Strip(" ", 1, 0)]) if paired else decoder
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size - 2 if paired else size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_check_not_empty(texts), trainer)
    return Tokens(tokenizer)


def _check_not_empty(texts: Iterable[str]) -> Iterator[str]:
    empty = True
    for text in texts:
        empty = False
        yield text
    if empty:
        raise OptionError("data: there is no text to train a tokenizer on")
