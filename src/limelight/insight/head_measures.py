"""The measures of every head, as sums that merge, so that a corpus of any size can be streamed.

Every measure is taken twice, on the half that heads are chosen by and on the held-out half.
Memory is linear in a text: single weights are recomputed some rows at a time, sums over keys are
attention over values of one channel, and the strongest keys come from the lens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from limelight.insight.probes import RELATIONS, Needle, Sentence
from limelight.insight.runner import Runner, layer_of
from limelight.ops.attend import compute
from limelight.ops.calls import AttentionCall, intercept
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.sources import Recomputed
from limelight.ops.lens.spec import Lens
from limelight.ops.masks.region import Extent, Region
from limelight.ops.problem import Problem
from limelight.rng import generator_for

LENS = Lens(top=4, value_top=4, entropy=True, distance=True)
_BAND = 5
"""How far a local head looks to either side, in tokens."""
_KEYS = 16
"""Keys drawn for each query to correlate weights with embeddings."""
_OFFSETS = range(-8, 9)
"""Fixed offsets that relations are compared with."""


class Sums:
    """Sums over queries and their counts, by measure; merging two gives those of both corpora."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, float] = {}

    def add(self, name: str, values: Tensor, count: int | float) -> None:
        """Add the sum of `count` values: `l h`, or a single number for all heads."""
        before = self.sums.get(name)
        values = values.detach().double().cpu()
        self.sums[name] = values if before is None else before + values
        self.counts[name] = self.counts.get(name, 0.0) + count

    def merge(self, other: Sums) -> None:
        """Add all of another's."""
        for name, values in other.sums.items():
            self.add(name, values, other.counts[name])

    def mean(self, name: str) -> Tensor:
        """The mean of a measure; NaN where nothing was measured."""
        if not self.counts.get(name):
            return torch.tensor(float("nan"), dtype=torch.float64)
        return self.sums[name] / self.counts[name]


def watch_rows(
    runner: Runner, rows: Tensor, lens: Lens = LENS, places: Tensor | int = -1
) -> tuple[list[Seen], Tensor]:
    """What every layer saw of rows of ids `b n`, and the model's output at some places of them."""
    seen: dict[int, Seen] = {}

    def record(call: AttentionCall) -> Tensor:
        output, layer_seen = call.attend(lens=lens)
        seen[layer_of(call)] = layer_seen
        return output

    with torch.no_grad(), intercept(record, runner.model):
        output = runner.run(rows, places)
    return [seen[number] for number in sorted(seen)], output


def pair_weights(seen: Seen, queries: Tensor, keys: Tensor) -> Tensor:
    """Single weights: `b h p` for p pairs; 0 where they are masked.

    From whole rows that the Seen recomputes, in tiles: exp(score − lse) would lose log n where the
    scores of a row are large, because the float32 lse is rounded as they are.
    """
    weights = torch.empty(*seen.extent[:2], len(queries), dtype=seen.dtype, device=seen.device)
    for first, tile in seen.in_tiles():
        in_tile = (queries >= first) & (queries < first + tile.shape[2])
        weights[:, :, in_tile] = tile[:, :, queries[in_tile] - first, keys[in_tile]]
    return weights


def allowed_pairs(seen: Seen, queries: Tensor, keys: Tensor) -> Tensor:
    """Which pairs the mask allows: broadcasts to `b h p`. Computed for a few queries at a time."""
    mask = _problem(seen).mask
    if mask is None:
        return torch.ones(len(queries), dtype=torch.bool)
    b, h, _, j = extent = seen.extent
    parts: list[Tensor] = []
    for rows, columns in zip(queries.split(64), keys.split(64), strict=True):
        place = Region.at(extent, slice(0, b), slice(0, h), rows, slice(0, j), queries.device)
        allowed = mask.allowed(place).expand(-1, -1, len(rows), -1)
        parts.append(allowed[:, :, torch.arange(len(rows)), columns])
    return torch.cat(parts, -1)


def key_sums(seen: Seen, channels: Tensor) -> Tensor:
    """Σ_j w_ij x_j for x of a few channels, `b g j c`: `b h i c`, computed by attention.

    Rows of weights are not normalised: with a sink, or the caller's log-sum-exp, they sum to less.
    """
    problem = _problem(seen)
    bias = None if problem.bias is None else problem.bias.to(channels.dtype)
    query, key = problem.query.to(channels.dtype), problem.key.to(channels.dtype)
    checked = replace(problem, query=query, key=key, value=channels, bias=bias, dropout=0.0)
    return compute(checked)[0]


def _problem(seen: Seen) -> Problem:
    assert isinstance(seen.source, Recomputed)
    return seen.source.problem


def visible_counts(seen: Seen) -> Tensor:
    """How many keys each query may see: `i`."""
    problem, extent = _problem(seen), seen.extent
    if problem.mask is None:
        return torch.full((extent.i,), float(extent.j), dtype=torch.float64)
    one_head = Extent(1, 1, extent.i, extent.j)
    counts = [
        problem.mask.allowed(
            Region.at(one_head, slice(0, 1), slice(0, 1), slice(a, min(a + 64, extent.i)),
                      slice(0, extent.j), torch.device("cpu"))
        ).expand(1, 1, -1, extent.j)[0, 0].sum(-1)
        for a in range(0, extent.i, 64)
    ]  # fmt: skip
    return torch.cat(counts).double().clamp(min=1)


class Excerpt(NamedTuple):
    """A piece of text as a model reads it."""

    ids: Tensor
    separates: Tensor
    """n, bool: punctuation and special tokens"""


def in_text(sums: Sums, layers: Sequence[Seen], excerpt: Excerpt, embeddings: Tensor) -> None:
    """Where heads look in running text, and the same for even weights, the chance level."""
    n = len(excerpt.ids)
    seen_keys = visible_counts(layers[0])
    places = torch.arange(n)
    pairs = {
        "previous": (places[1:], places[1:] - 1),
        "next": (places[:-1], places[:-1] + 1),
        "self": (places, places),
        "first": (places[1:], torch.zeros(n - 1, dtype=torch.int64)),
        "same token": _same(excerpt.ids),
        "local": _near(n),
    }
    for name, (queries, keys) in pairs.items():
        if not len(queries):
            continue
        query_count = float(len(queries.unique()))
        _add_shares(sums, name, layers, queries, keys, query_count)
        even = allowed_pairs(layers[0], queries, keys).expand(1, 1, -1)[0, 0] / seen_keys[queries]
        sums.add(f"chance {name}", even.sum(), query_count)
    _separators(sums, layers, excerpt, seen_keys)
    entropy = torch.stack([seen.entropy[0][:, 1:].sum(-1) for seen in layers])
    sums.add("entropy", entropy, n - 1)
    sums.add("even entropy", seen_keys[1:].log().sum(), n - 1)
    sums.add("reach", torch.stack([seen.distance[0].sum(-1) for seen in layers]), n)
    _semantics(sums, layers, excerpt, embeddings)


def pair_shares(seen: Seen, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of pairs, and ‖weight · value‖ as a share of the row's sum: `b h p` each."""
    weights = pair_weights(seen, queries, keys).double()
    sizes = _problem(seen).value.norm(dim=-1, keepdim=True)
    totals = key_sums(seen, sizes.float())[..., 0].double().clamp(min=1e-12)
    heads = sizes[..., 0].repeat_interleave(seen.extent.h // sizes.shape[1], dim=1).double()
    return weights, weights * heads[:, :, keys] / totals[:, :, queries]


def _add_shares(
    sums: Sums, name: str, layers: Sequence[Seen], queries: Tensor, keys: Tensor, count: int | float
) -> None:
    """Add the weights of pairs, and their value-weighted form, for `count` queries."""
    shares = [pair_shares(seen, queries, keys) for seen in layers]
    for prefix, part in (("", 0), ("value ", 1)):
        total = torch.stack([layer[part].sum((0, 2)) for layer in shares])
        sums.add(prefix + name, total, count)


def _same(ids: Tensor, most: int = 8) -> tuple[Tensor, Tensor]:
    """Pairs of each token with its nearest earlier occurrences."""
    before: dict[int, list[int]] = {}
    pairs: list[tuple[int, int]] = []
    for place, token in enumerate(ids.tolist()):
        pairs += [(place, earlier) for earlier in before.setdefault(token, [])[-most:]]
        before[token].append(place)
    table = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
    return table[:, 0], table[:, 1]


def _separators(sums: Sums, layers: Sequence[Seen], excerpt: Excerpt, seen_keys: Tensor) -> None:
    """Weight on punctuation and special tokens, but not on the first token."""
    marks = excerpt.separates.clone()
    marks[0] = False
    n = len(excerpt.ids)
    raw: list[Tensor] = []
    weighted: list[Tensor] = []
    for seen in layers:
        value = _problem(seen).value
        size = value.norm(dim=-1)
        mark = marks.to(size).expand_as(size)
        channels = torch.stack([mark, size, mark * size], -1)
        sums_by_query = key_sums(seen, channels.float())[0].double()
        raw.append(sums_by_query[..., 0].sum(-1))
        weighted.append((sums_by_query[..., 2] / sums_by_query[..., 1].clamp(min=1e-12)).sum(-1))
    sums.add("separator", torch.stack(raw), n)
    sums.add("value separator", torch.stack(weighted), n)
    earlier = marks.double().cumsum(0)
    counts = torch.where(seen_keys < n, earlier, marks.double().sum())
    sums.add("chance separator", (counts / seen_keys).sum(), n)


def _near(n: int) -> tuple[Tensor, Tensor]:
    """Pairs of tokens at most `_BAND` apart; those that a mask forbids weigh nothing."""
    queries = torch.arange(n).repeat_interleave(2 * _BAND + 1)
    keys = queries + torch.arange(-_BAND, _BAND + 1).repeat(n)
    inside = (keys >= 0) & (keys < n)
    return queries[inside], keys[inside]


def _semantics(sums: Sums, layers: Sequence[Seen], excerpt: Excerpt, embeddings: Tensor) -> None:
    """The sums behind the correlation of weights with the cosines of static embeddings."""
    n = len(excerpt.ids)
    content = (~excerpt.separates).nonzero()[:, 0]
    if len(content) < 4:
        return
    generator = generator_for(n, int(excerpt.ids.sum()))
    queries = content.repeat_interleave(_KEYS)
    keys = content[torch.randint(len(content), (len(queries),), generator=generator)]
    kept = (excerpt.ids[queries] != excerpt.ids[keys]) & (
        allowed_pairs(layers[0], queries, keys).expand(1, 1, -1)[0, 0]
    )
    queries, keys = queries[kept], keys[kept]
    if not len(queries):
        return
    cosine = torch.cosine_similarity(embeddings[queries], embeddings[keys], dim=-1).double()
    shares = [pair_shares(seen, queries, keys) for seen in layers]
    count = len(queries)
    for prefix, part in (("", 0), ("value ", 1)):
        w = torch.stack([layer[part][0] for layer in shares])
        for name, values in (
            ("w", w.sum(-1)), ("ww", w.square().sum(-1)), ("wc", (w * cosine).sum(-1)),
            ("c", cosine.sum()), ("cc", cosine.square().sum()),
        ):  # fmt: skip
            sums.add(f"{prefix}semantics {name}", values, count)


def semantics(sums: Sums, prefix: str = "") -> Tensor:
    """Pearson's correlation of weights and cosines, from the sums: `l h`."""
    names = ("w", "ww", "wc", "c", "cc")
    w, ww, wc, c, cc = (sums.mean(f"{prefix}semantics {name}") for name in names)
    spread = ((ww - w * w).clamp(min=0) * (cc - c * c).clamp(min=0)).sqrt()
    return (wc - w * c) / spread.clamp(min=1e-15)


def repeats(sums: Sums, runner: Runner, vocabulary: Tensor, begin: int | None, seed: int) -> None:
    """Induction and duplicate-token scores: BOS, then S random tokens twice."""
    rows, size = repeated_rows(vocabulary, begin, seed)
    layers, _ = watch_rows(runner, rows, Lens())
    first = rows.shape[1] - size
    queries = torch.arange(first, rows.shape[1])
    even = 1 / visible_counts(layers[0])[queries]
    # a query is a token's second occurrence; an induction head looks at what followed the first
    for name, keys in (("induction", queries - size + 1), ("duplicate token", queries - size)):
        _add_shares(sums, name, layers, queries, keys, len(queries) * len(rows))
        sums.add(f"chance {name}", even.sum() * len(rows), len(queries) * len(rows))


def repeated_rows(
    vocabulary: Tensor, begin: int | None, seed: int, rows: int = 4, size: int = 48
) -> tuple[Tensor, int]:
    """BOS where there is one, then `size` random tokens twice, in each row: `b n`."""
    generator = generator_for(seed, 3)
    drawn = vocabulary[torch.randint(len(vocabulary), (rows, size), generator=generator)]
    lead = [] if begin is None else [torch.full((rows, 1), begin)]
    return torch.cat([*lead, drawn, drawn], 1), size


class EncodedSentence(NamedTuple):
    """A probe sentence as a model reads it."""

    sentence: Sentence
    ids: Tensor
    places: dict[str, list[int]]
    """the tokens of each role's word"""
    excluded: frozenset[int]
    """tokens that do not count as keys"""


def syntax(sums: Sums, layers: Sequence[Seen], group: Sequence[EncodedSentence]) -> None:
    """How often a word's strongest key is the word it is related to, in sentences of one length.

    Keys that the tokenizer added, and the first token, do not count, as in Clark et al. 2019.
    """
    raw = torch.stack([seen.top.indices for seen in layers])  # l b h i k
    weighted = torch.stack([seen.value_top.indices for seen in layers])
    for row, (sentence, _, places, excluded) in enumerate(group):
        for relation in RELATIONS:
            for first, second in sentence.pairs(relation):
                if not places[first] or not places[second]:  # the tokenizer drops the word
                    continue
                for arrow, query_role, key_role in (("→", first, second), ("←", second, first)):
                    query, keys = places[query_role][-1], places[key_role]
                    name = f"{relation} {arrow}"
                    for prefix, links in (("", raw), ("value ", weighted)):
                        best = _strongest(links[:, row, :, query], excluded)
                        sums.add(prefix + name, torch.isin(best, torch.tensor(keys)).double(), 1)
                    for offset in _OFFSETS:
                        hit = float(query + offset in keys)
                        sums.add(f"offset {offset} {name}", torch.tensor(hit), 1)


def _strongest(indices: Tensor, excluded: frozenset[int]) -> Tensor:
    """The first of the strongest keys that counts, −1 where none does: `l h` from `l h k`."""
    counts = ~torch.isin(indices, torch.tensor(sorted({*excluded, -1})))
    first = counts.double().argmax(-1, keepdim=True)
    best = indices.gather(-1, first)[..., 0]
    return torch.where(counts.any(-1), best, -1)


def best_offset(chosen: Sums, held_out: Sums, name: str) -> float:
    """The held-out hit rate of the fixed offset with the highest rate on the chosen half."""
    rates = {offset: float(chosen.mean(f"offset {offset} {name}")) for offset in _OFFSETS}
    best = max(rates, key=lambda offset: rates[offset])
    return float(held_out.mean(f"offset {best} {name}"))


def retrieval(
    sums: Sums, runner: Runner, encode: Callable[[str], list[int]], prompts: Iterable[Needle]
) -> None:
    """How often, at a step that copies a needle's token, a head's strongest key is that token.

    Wu et al. 2024, https://arxiv.org/abs/2404.15574. The answer is read in one pass with the
    prompt; a step counts where the model itself would have generated the token.
    """
    for prompt in prompts:
        before, needle, after, answer = (encode(part) for part in prompt)
        ids = torch.tensor([*before, *needle, *after, *answer])
        steps = torch.arange(len(ids) - len(answer) - 1, len(ids) - 1)
        layers, logits = watch_rows(runner, ids[None], Lens(top=1, value_top=1), steps)
        copied = logits[0].argmax(-1).cpu() == ids[steps + 1]
        start, stop = len(before), len(before) + len(needle)
        needle_places = torch.arange(start, stop)
        for prefix in ("", "value "):
            hits: list[Tensor] = []
            for seen in layers:
                links = seen.top if not prefix else seen.value_top
                top = links.indices[0, :, steps, 0]
                inside = (top >= start) & (top < stop)
                same = ids[top.clamp(min=0)] == ids[steps + 1]
                hits.append((inside & same & copied).double().sum(-1))
            sums.add(f"{prefix}retrieval", torch.stack(hits), float(copied.sum()))
        even = (ids[needle_places][None] == ids[steps + 1][:, None]).sum(-1) / (steps + 1)
        sums.add("chance retrieval", (even * copied).sum(), float(copied.sum()))


def static_embeddings(embedding: nn.Module | None, ids: Tensor) -> Tensor:
    """The vectors of tokens before any layer."""
    assert embedding is not None
    with torch.no_grad():
        return embedding(ids).float()
