"""The cause panel: what changes when links are cut, beside their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, kl_div

from limelight.errors import OptionError, UnavailableError
from limelight.explorer.pausing import pausing
from limelight.explorer.schemas import LinkToCut
from limelight.explorer.token_labels import token_label
from limelight.explorer.worker import Job
from limelight.insight.ablation import Head
from limelight.insight.cutting import cutting
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.models.loading.pretrained import Model
from limelight.seeing.recording.recording import Link, Recording

MAX_TOKENS = 256
"""Each link of a token takes a run of the model."""
CANDIDATES = 10
"""Next tokens that are shown, before and after the cut."""


def effects(
    model: Model, recording: Recording, query: int, head: Head | None, job: Job
) -> dict[str, Any]:
    """For each key that a token sees: its weight, and the change when that link is cut.

    The change is 1 − cosine of the token's final vectors (an encoder), or KL(before ‖ after), in
    nats, of the distributions of the next token (a decoder). The link is cut in one head, or in all
    of them; the weight is then their mean. It is cut before softmax, so that the row still sums
    to 1.
    """
    runs = _CutRuns(model, recording, job)
    heads = _all_heads(recording) if head is None else [head]
    if query >= runs.count:
        raise OptionError(f"query must be a token from 0 to {runs.count - 1}, found {query}")
    weights = torch.stack([recording.weights(layer, head)[query] for layer, head in heads]).mean(0)
    before = runs.outcome(query, [])
    keys = [key for key in range(runs.count) if float(weights[key]) > 0]
    for done, key in enumerate(keys, start=1):
        links = [Link(layer, head, query, key) for layer, head in heads]
        change = runs.change(before, runs.outcome(query, links))
        job.report(
            {"key": key, "weight": float(weights[key]), "change": change,
             "share": done / len(keys)}
        )  # fmt: skip
    return {"query": query, "measure": runs.measure}


def cut(
    model: Model,
    recording: Recording,
    requested: Sequence[LinkToCut],
    job: Job,
    *,
    everywhere: bool,
) -> dict[str, Any]:
    """What changes when these links are cut together: every token, and the prediction at the end.

    `tokens`: 1 − cosine of the final vectors of each token. A decoder adds `next`, the likeliest
    next tokens before and after, and `kl` of the two distributions; an encoder adds `sentence`,
    1 − cosine of the mean vectors.
    """
    runs = _CutRuns(model, recording, job)
    links: list[Link] = []
    for link in requested:
        if max(link.query, link.key) >= runs.count:
            raise OptionError(
                f"links must be between tokens 0 and {runs.count - 1}, "
                f"found {max(link.query, link.key)}"
            )
        heads = _all_heads(recording) if everywhere else [(link.layer, link.head)]
        links += [Link(layer, head, link.query, link.key) for layer, head in heads]
    before, after = runs.hidden([]), runs.hidden(links)
    changes: dict[str, Any] = {
        "measure": runs.measure,
        "tokens": (1 - cosine_similarity(before, after, dim=-1)).clamp(min=0).tolist(),
    }
    if isinstance(model, Decoder) and model.tokens is not None:
        old, new = (model.logits(hidden[-1]).float().log_softmax(-1) for hidden in (before, after))
        ids = list(dict.fromkeys([*old.topk(CANDIDATES).indices.tolist(),
                                  *new.topk(CANDIDATES).indices.tolist()]))  # fmt: skip
        changes["kl"] = _kl(old, new)
        changes["next"] = [
            {"text": token_label(model.tokens, token), "before": float(old[token].exp()),
             "after": float(new[token].exp())}
            for token in ids
        ]  # fmt: skip
    else:
        changes["sentence"] = float(1 - cosine_similarity(before.mean(0), after.mean(0), dim=-1))
    return changes


class _CutRuns:
    """Runs of a model on one text, each with some links cut."""

    def __init__(self, model: Model, recording: Recording, job: Job) -> None:
        if not isinstance(model, Encoder | Decoder):
            raise OptionError(
                f"links are cut in text encoders and decoders, found a {type(model).__name__}"
            )
        if model.tokens is None:
            raise UnavailableError("this model came without a tokenizer")
        ids = model.tokens.encode(recording.text, limit=model.config.context).ids
        if len(ids) > MAX_TOKENS:
            raise OptionError(
                f"cutting is for texts of up to {MAX_TOKENS} tokens, this one has {len(ids):,}"
            )
        self._model, self._job = model, job
        self._ids = torch.tensor([ids])
        self.count = len(ids)
        self.measure = "KL, nats" if isinstance(model, Decoder) else "1 − cosine"

    @torch.no_grad()
    def hidden(self, links: Sequence[Link]) -> Tensor:
        """The final vector of every token: `n m`."""
        with pausing(self._job), cutting(self._model, links):
            model = self._model
            hidden = model.hidden if isinstance(model, Decoder) else model
            return hidden(self._ids)[0].float()

    def outcome(self, token: int, links: Sequence[Link]) -> Tensor:
        """A token's final vector (an encoder), or the log-probabilities after it (a decoder)."""
        vector = self.hidden(links)[token]
        if not isinstance(self._model, Decoder):
            return vector
        with torch.no_grad():
            return self._model.logits(vector).float().log_softmax(-1)

    def change(self, before: Tensor, after: Tensor) -> float:
        """The distance between two outcomes of a token, by the `measure`."""
        if isinstance(self._model, Decoder):
            return _kl(before, after)
        return max(0.0, float(1 - cosine_similarity(before, after, dim=-1)))


def _all_heads(recording: Recording) -> list[Head]:
    return [(layer, head) for layer in recording.layer_numbers for head in recording.head_numbers]


def _kl(before: Tensor, after: Tensor) -> float:
    return max(0.0, float(kl_div(after, before, reduction="sum", log_target=True)))
