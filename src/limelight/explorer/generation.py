"""The generation panel: a continuation token by token, and what each new token attended to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from limelight.errors import OptionError
from limelight.explorer.worker import Job
from limelight.labels import visible
from limelight.models.decoder import Decoder
from limelight.models.generation.batch import generation_batch, tokens_left
from limelight.models.generation.sampling import Sampling, generators
from limelight.models.loading.pretrained import Model
from limelight.models.tokens import prompt_ids
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
    """Write on after a prompt and some tokens; each new token is reported as it is drawn.

    A report: the token's `id`, `text` and `probability`, the `candidates` it was drawn from, the
    number of tokens it could look at, and `attended`: the weights of the last row, averaged over
    all heads of all layers, and for each layer.
    """
    if not isinstance(model, Decoder):
        raise OptionError(
            f"{model.name or type(model).__name__} reads but does not write: choose a decoder"
        )
    if model.tokens is None:
        raise OptionError("this model came without a tokenizer")
    ids = [*prompt_ids(model.tokens, prompt), *after]
    vocabulary = model.config.vocabulary
    for token in after:
        if token >= vocabulary:
            raise OptionError(f"after names token {token}, expected 0 to {vocabulary - 1}")
    if len(ids) > min(model.config.context, 8192):
        raise OptionError(f"the text has {len(ids):,} tokens, too many to go on from")
    limit = tokens_left(model, ids, max_tokens)
    how = Sampling(temperature=temperature)
    rngs = generators(seed, [ids])
    job.report({"prompt": [visible(model.tokens.decode([token])) for token in ids]})
    written: list[int] = []
    end = set(model.tokens.end)
    batch = generation_batch(model, [ids], max_tokens)
    logits, attended = _watched(batch.begin)
    while len(written) < limit:
        job.pause()
        probabilities = logits[0].float().softmax(-1)
        token = how.draw(logits, [[*ids, *written]], rngs)[0]
        best, places = probabilities.topk(CANDIDATES)
        job.report(
            {
                "id": token,
                "text": model.tokens.decode([*after, *written, token])[
                    len(model.tokens.decode([*after, *written])) :
                ],
                "label": visible(model.tokens.decode([token]))
                or visible(model.tokens.piece(token)),
                "probability": float(probabilities[token]),
                "candidates": [
                    {"id": place, "text": visible(model.tokens.decode([place])) or "∅", "p": p}
                    for place, p in zip(places.tolist(), best.tolist(), strict=True)
                ],
                "attended": attended,
            }
        )
        written.append(token)
        if token in end:
            break
        if len(written) < limit:
            logits, attended = _watched(lambda token=token: batch.step([token]))
    why = "end" if written and written[-1] in end else "length"
    return {"ids": written, "why": why}


def _watched(step: Any) -> tuple[Tensor, dict[str, Any]]:
    """A step of the model, and what its last token looked at: mean over heads, `l j` and `j`."""
    rows: list[Tensor] = []

    def note(call: AttentionCall) -> Tensor:
        output, seen = call.attend(lens=Lens())
        rows.append(seen.rows([seen.extent.i - 1])[0, :, 0].float().cpu())
        return output

    with torch.no_grad(), intercept(note):
        logits = step()
    mean = torch.stack([row.mean(0) for row in rows])
    best = mean.mean(0)
    return logits, {
        "mean": [round(value, 4) for value in best.tolist()],
        "heads": [
            [layer, head, int(row.argmax()), round(float(row.max()), 4)]
            for layer, by_head in enumerate(rows)
            for head, row in enumerate(by_head)
        ],
    }
