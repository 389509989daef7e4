"""Labels of single tokens of a vocabulary."""

from __future__ import annotations

from limelight.labels import visible
from limelight.models.tokens import Tokens


def token_label(tokenizer: Tokens, token: int) -> str:
    """The text of a token; of a special token, which has none, its name in the vocabulary.

    >>> from limelight.models.loading.pretrained import load
    >>> tokenizer = load("smollm2").tokens
    >>> token_label(tokenizer, 260), token_label(tokenizer, tokenizer.end[0])
    (' the', '<|im_end|>')
    """
    return visible(tokenizer.decode([token]) or tokenizer.tokenizer.id_to_token(token) or "")
