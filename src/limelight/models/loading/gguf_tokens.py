"""The tokenizer inside a GGUF file, rebuilt for the `tokenizers` library.

Two kinds occur in the Llama family: byte-level BPE with its merges ("gpt2"), and SentencePiece
BPE ("llama"), whose merges follow from the scores of its pieces.
"""

from __future__ import annotations

from typing import Any

from limelight.errors import FileError
from limelight.models.loading.gguf import Gguf
from limelight.models.tokens import Tokens

_CONTROL, _USER_DEFINED = 3, 4
"""Token types: special tokens, which stand for no text, and added ones, which are never split."""

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def gguf_tokens(file: Gguf) -> Tokens:
    """The tokenizer inside a GGUF file, with its begin and end tokens and its chat template."""
    from tokenizers import AddedToken

    pieces = file.require("tokenizer.ggml.tokens", list)
    if not pieces or not all(isinstance(piece, str) for piece in pieces):
        raise FileError(f"{file.path}: tokenizer.ggml.tokens must be texts, at least one")
    kind = file.require("tokenizer.ggml.model", str)
    builders = {"gpt2": _byte_level, "llama": _sentence_piece}
    if kind not in builders:
        raise FileError(f"{file.path}: tokenizer {kind!r} is unknown, expected 'gpt2' or 'llama'")
    try:
        tokenizer = builders[kind](file, {piece: token for token, piece in enumerate(pieces)})
    except FileError:
        raise
    except Exception as error:  # all that the library raises
        raise FileError(f"{file.path}: its tokenizer is damaged: {error}") from error
    types = file.require("tokenizer.ggml.token_type", list, [])
    tokenizer.add_special_tokens(
        [
            AddedToken(piece, special=True, normalized=False)
            for piece, token_type in zip(pieces, types, strict=False)
            if token_type == _CONTROL
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(piece, normalized=False)
            for piece, token_type in zip(pieces, types, strict=False)
            if token_type == _USER_DEFINED
        ]
    )
    begin, end = (_special(file, name, len(pieces)) for name in ("bos", "eos"))
    if begin is not None and file.get("tokenizer.ggml.add_bos_token", _adds_begin(file)):
        _prepend(tokenizer, pieces[begin], begin)
    return Tokens(
        tokenizer,
        begin=begin,
        end=() if end is None else (end,),
        chat_template=file.require("tokenizer.chat_template", str, "") or None,
    )


def _special(file: Gguf, name: str, count: int) -> int | None:
    """The id of a special token, None if the file does not name it."""
    field = f"tokenizer.ggml.{name}_token_id"
    token = file.get(field)
    if token is not None and not (isinstance(token, int) and 0 <= token < count):
        raise FileError(f"{file.path}: {field} is {token!r}, expected one of {count} tokens")
    return token


def _adds_begin(file: Gguf) -> bool:
    """Whether texts start with the begin token if the file does not say."""
    return (
        file.get("tokenizer.ggml.model") == "llama" or file.get("tokenizer.ggml.pre") == "llama-bpe"
    )


def _prepend(tokenizer: Any, piece: str, token: int) -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer.post_processor = TemplateProcessing(
        single=f"{piece} $A", pair=f"{piece} $A {piece} $B", special_tokens=[(piece, token)]
    )


def _byte_level(file: Gguf, vocabulary: dict[str, int]) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    lines = file.require("tokenizer.ggml.merges", list)
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    whole_words = file.get("tokenizer.ggml.pre") == "llama-bpe"
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=whole_words))
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=True)
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    pre_tokenizer = {
        "default": gpt2,
        "gpt-2": gpt2,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2]),
        "llama-bpe": pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(_LLAMA3), behavior="isolated"), plain]
        ),
    }
    name = file.get("tokenizer.ggml.pre", "default")
    if name not in pre_tokenizer:
        known = ", ".join(pre_tokenizer)
        raise FileError(f"{file.path}: pre-tokenizer {name!r} is unknown, expected one of {known}")
    tokenizer.pre_tokenizer = pre_tokenizer[name]
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(file: Gguf, vocabulary: dict[str, int]) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = file.require("tokenizer.ggml.scores", list)
    unknown = _special(file, "unknown", len(vocabulary)) or 0
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            _merges_by_score(vocabulary, scores),
            unk_token=next(piece for piece, token in vocabulary.items() if token == unknown),
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    prefix = file.get("tokenizer.ggml.add_space_prefix", True)
    space = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), space]) if prefix else space
    )
    parts: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(parts + ([decoders.Strip(" ", 1, 0)] if prefix else []))
    return tokenizer


def _merges_by_score(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to make a piece from two others, the best-scored pieces first."""
    splits = [
        (-scores[token], vocabulary[piece[:cut]], vocabulary[piece[cut:]], piece[:cut], piece[cut:])
        for piece, token in vocabulary.items()
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    return [(left, right) for *_, left, right in sorted(splits)]
