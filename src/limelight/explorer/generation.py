"""The generation panel: a continuation token by token, and what each new token attends to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from limelight.errors import OptionError
from limelight.explorer.schemas import MAX_TOKENS
from limelight.explorer.token_labels import token_label
from limelight.explorer.worker import Job
from limelight.models.decoder import Decoder
from limelight.models.generation.batch import generation_batch, tokens_left
from limelight.models.generation.sampling import Sampling, generators
from limelight.models.loading.pretrained import Model
from limelight.models.tokens import Tokens, prompt_ids
from limelight.ops.calls import AttentionCall, intercept
from limelight.ops.lens.spec import Lens

CANDIDATES = 10
"""Next tokens that are shown with their probabilities."""


def continuation(
    model: Model,
    prompt: str,
    after: list[int],
    max_tokens: int,
    temperature: float,
    seed: int,
    job: Job,
) -> dict[str, Any]:
    """Continue a prompt, and the tokens `after` it; each new token is reported as it is sampled.

    The first report has the labels of the `prompt`. The report of a token has its `id`, `text`,
    `label` and `probability`, the `candidates` it was sampled from, and what it `attended` to: see
    `_step_attention`. Returns the new `ids` and `why` they end: at an `end` token or the `length`.
    """
    model, tokenizer, ids = _checked(model, prompt, after)
    limit = tokens_left(model, ids, max_tokens)
    job.report({"prompt": [token_label(tokenizer, token) for token in ids]})
    sampling, rngs = Sampling(temperature=temperature), generators(seed, [ids])
    new_ids: list[int] = []
    batch = generation_batch(model, [ids], max_tokens)
    logits, attention = _step_attention(batch.begin)
    while len(new_ids) < limit:
        job.pause()
        token = sampling.draw(logits, [[*ids, *new_ids]], rngs)[0]
        report = _token_report(tokenizer, [*after, *new_ids], token, logits[0])
        job.report({**report, "attended": attention})
        new_ids.append(token)
        if token in tokenizer.end:
            break
        if len(new_ids) < limit:
            logits, attention = _step_attention(lambda token=token: batch.step([token]))
    return {"ids": new_ids, "why": "end" if new_ids and new_ids[-1] in tokenizer.end else "length"}


def _checked(model: Model, prompt: str, after: list[int]) -> tuple[Decoder, Tokens, list[int]]:
    """The decoder, its tokenizer, and the token ids to continue."""
    if not isinstance(model, Decoder):
        raise OptionError(
            f"{model.name or type(model).__name__} does not generate text: choose a decoder"
        )
    if model.tokens is None:
        raise OptionError("this model came without a tokenizer")
    vocabulary = model.config.vocabulary
    for token in after:
        if token >= vocabulary:
            raise OptionError(f"after must hold tokens from 0 to {vocabulary - 1}, found {token}")
    ids = [*prompt_ids(model.tokens, prompt), *after]
    limit = min(model.config.context, MAX_TOKENS)
    if len(ids) > limit:
        raise OptionError(
            f"the text to continue has {len(ids):,} tokens, expected at most {limit:,}"
        )
    return model, model.tokens, ids


def _token_report(
    tokenizer: Tokens, before: list[int], token: int, logits: Tensor
) -> dict[str, Any]:
    """A new token after the tokens `before` it, and the likeliest tokens by the logits `v`."""
    probabilities = logits.float().softmax(-1)
    best, candidates = probabilities.topk(CANDIDATES)
    text_before = tokenizer.decode(before)

    def describe(token: int) -> dict[str, Any]:
        # Decoded with what precedes it: a tokenizer may drop the space of a first token.
        text = tokenizer.decode([*before, token])[len(text_before) :]
        return {"id": token, "text": text, "label": token_label(tokenizer, token)}

    return {
        **describe(token),
        "probability": float(probabilities[token]),
        "candidates": [
            {**describe(candidate), "p": p}
            for candidate, p in zip(candidates.tolist(), best.tolist(), strict=True)
        ],
    }


def _step_attention(step: Callable[[], Tensor]) -> tuple[Tensor, dict[str, Any]]:
    """The logits of a step, and what its last token attends to.

    `mean` j: its weights, averaged over all heads of all layers. `heads`: for each head its layer,
    its number, the key with its largest weight, and that weight.
    """
    rows: list[Tensor] = []

    def record(call: AttentionCall) -> Tensor:
        output, seen = call.attend(lens=Lens())
        rows.append(seen.rows([seen.extent.i - 1])[0, :, 0].float().cpu())
        return output

    with torch.no_grad(), intercept(record):
        logits = step()
    mean = torch.stack([row.mean(0) for row in rows]).mean(0)
    return logits, {
        "mean": [round(value, 4) for value in mean.tolist()],
        "heads": [
            [layer, head, int(row.argmax()), round(float(row.max()), 4)]
            for layer, by_head in enumerate(rows)
            for head, row in enumerate(by_head)
        ],
    }
