"""What each link of a token causes, measured by cutting it, beside what it weighs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.checks import check_whole
from limelight.errors import OptionError
from limelight.fields import checked
from limelight.insight.interventions import ALL, CleanRun, Cuts, Effect
from limelight.insight.rank_correlation import Correlation, correlations
from limelight.insight.result import Result
from limelight.insight.rollout import rolled_out
from limelight.insight.runner import eval_mode, runner_for, through_the_seam
from limelight.insight.table import Table
from limelight.insight.value_norms import value_norms
from limelight.rng import generator_for
from limelight.seeing.recording.picks import Pick, find_tokens
from limelight.seeing.recording.recording import Link

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

PROJECTIONS = 64
"""Random directions along which gradients of a final vector are taken."""


@dataclass(frozen=True, eq=False)
class Cause(Result):
    """What a token's links weigh, and what cutting them causes. l layers, h heads, n keys.

    A change is 1 − cosine of the token's final vector (an encoder) or KL(before ‖ after) of the
    next-token distribution in nats (a decoder, whose later tokens have no effect and are left out).
    """

    text: str
    model: str
    tokens: tuple[str, ...]
    token: int
    """the token that looks"""
    measure: str
    """what a change is: "1 − cosine" or "KL" """
    chosen: str
    """the most likely next token, whose log-probability is followed; empty for an encoder"""
    weight: Tensor
    """l h n: the token's weight on each key"""
    value_weighted: Tensor
    """l h n: ‖weight · value‖"""
    forbid: Effect
    """l h n: the link cut before softmax, in one head"""
    zero: Effect
    """l h n: the link's weight set to 0 after softmax, in one head"""
    layer_forbid: Effect
    """l n: cut before softmax, in all heads of one layer"""
    layer_zero: Effect
    """l n: after softmax"""
    everywhere_forbid: Effect
    """n: cut before softmax, in all heads of all layers"""
    everywhere_zero: Effect
    """n: after softmax"""
    occluded: Effect
    """n: no other token sees this one, in any layer"""
    gradient: Tensor
    """n: |gradient × input|"""
    rollout: Tensor
    """n"""
    uniform: Effect
    """l h: equal weights in place of the token's own, in one head"""
    uniform_everywhere: float
    """the change when the token spreads its weight equally in every head"""
    control: Effect
    """links of other tokens, drawn at random and cut before softmax"""
    control_links: tuple[Link, ...]
    link_correlations: tuple[Correlation, ...]
    """over single links: one key in one head"""
    token_correlations: tuple[Correlation, ...]
    """over keys, all heads and layers together"""

    @property
    def by_token(self) -> dict[str, Tensor]:
        """Every measure of a key, heads and layers together: n each."""
        return {
            "weight": self.weight.mean((0, 1)),
            "value-weighted": self.value_weighted.mean((0, 1)),
            "rollout": self.rollout,
            "gradient × input": self.gradient,
            "cut": self.everywhere_forbid.change,
            "zeroed": self.everywhere_zero.change,
            "occluded": self.occluded.change,
        }

    @property
    def by_link(self) -> dict[str, Tensor]:
        """Every measure of a link in one head: l h n each."""
        return {
            "weight": self.weight, "value-weighted": self.value_weighted,
            "cut": self.forbid.change, "zeroed": self.zero.change,
        }  # fmt: skip

    def links(self, n: int = 10) -> list[tuple[Link, float]]:
        """The n links of single heads whose cut changes most, with the change."""
        change = self.forbid.change
        best = change.flatten().topk(min(check_whole("n", n, 0), change.numel()))
        strongest: list[tuple[Link, float]] = []
        for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            layer, head, key = _unravelled(index, change.shape)
            weight = float(self.weight[layer, head, key])
            strongest.append((Link(layer, head, self.token, key, weight), value))
        return strongest

    @property
    def verdict(self) -> str:
        """One sentence: the result for this token, and its limits."""
        token = self.tokens[self.token]
        change, weight = self.everywhere_forbid.change, self.weight.flatten()
        most = int(change.argmax())
        heaviest = int(weight.argmax())
        layer, head, key = _unravelled(heaviest, self.weight.shape)
        cut = self.forbid.change.flatten()
        rank = int((cut > cut[heaviest]).sum()) + 1
        rho = next(c for c in self.link_correlations if (c.first, c.second) == ("weight", "cut"))
        control = ""
        if self.control_links:
            median = float(self.control.change.median())
            control = f"; a random link of another token in one head: median {median:.1g}"
        return (
            f'Cutting "{token}" → "{self.tokens[most]}" everywhere changes "{token}" most '
            f"({self.measure} {float(change[most]):.2g}; equal weights in every head: "
            f"{self.uniform_everywhere:.2g}{control}); its largest weight, layer "
            f'{layer} head {head} to "{self.tokens[key]}" ({float(weight[heaviest]):.2f}), is rank '
            f"{rank} of {len(cut)} by what its cut causes, and over all links the rank correlation "
            f"of weight and cut is ρ = {rho}: the changes are the finding for this text and model, "
            "ρ only sums them up, and later layers may repair a cut, which hides its effect."
        )

    def table(self) -> Table:
        rows = [
            (j, name, *(float(values[j]) for values in self.by_token.values()))
            for j, name in enumerate(self.tokens)
        ]
        # a space lets a narrow terminal wrap the heading where a hyphen would be cut
        names = [name.replace("-", " ") for name in self.by_token]
        columns = ("key", f'"{self.tokens[self.token]}" to', *names)
        title = f"{self.model}: changes are {self.measure}, heads and layers together"
        return Table(columns, rows, title, decimals=4)

    def link_table(self, n: int = 10) -> Table:
        """The links of single heads whose cut changes most."""
        rows = [
            (
                link.layer, link.head, self.tokens[link.key], link.weight,
                float(self.value_weighted[link.layer, link.head, link.key]), change,
                float(self.zero.change[link.layer, link.head, link.key]),
            )
            for link, change in self.links(n)
        ]  # fmt: skip
        columns = ("layer", "head", "to", "weight", "value-weighted", "cut", "zeroed")
        return Table(columns, rows, "What cutting one link in one head causes", decimals=4)

    def correlation_table(self) -> Table:
        """Rank correlations between all measures."""
        rows = [
            (over, c.first, c.second, c.rho, f"[{c.low:.2f}, {c.high:.2f}]", c.size)
            for over, pairs in (
                ("links", self.link_correlations),
                ("keys", self.token_correlations),
            )
            for c in pairs
        ]
        return Table(
            ("over", "measure", "and", "rho", "95%", "n"), rows, "Rank correlations", decimals=2
        )

    def figure(self) -> Figure:
        from limelight.insight.cause_figure import draw

        return draw(self)

    def values(self) -> dict[str, Any]:
        names = (
            "text", "model", "tokens", "token", "measure", "chosen", "weight", "value_weighted",
            "forbid", "zero", "layer_forbid", "layer_zero", "everywhere_forbid", "everywhere_zero",
            "occluded", "gradient", "rollout", "uniform", "uniform_everywhere", "control",
            "control_links", "link_correlations", "token_correlations", "verdict",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


@checked
def cause(
    model: str | Path | nn.Module,
    text: str | Tensor,
    token: Pick,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    controls: int = 64,
    seed: int = 0,
    progress: bool | None = None,
) -> Cause:
    """Measure what each link of a token causes, beside its weight.

    Each link of the token is cut by itself: in one head, in one layer or everywhere, before softmax
    or after it. Each key is also hidden from all other tokens. The effect is the change of the
    token's final vector, or of the next-token distribution. The usual proxies are measured too:
    weight, value-weighted attention, rollout, gradient × input, equal weights; and cuts of other
    tokens' links as the control.

    Args:
        model: a name or path for `load`, one of our models, a Hugging Face model, or any module
            whose attention goes through limelight and that takes `b n` ids or `b n m` vectors.
        text: what it reads; for a module without tokenizer its input for one text, `n` or `n m`.
        token: the token that looks, by text or index.
        tokenizer: of a model that has none of its own, in transformers' form.
        controls: how many random links of other tokens are cut.
        seed: of the random links, the directions of the gradients, and the bootstrap.
        progress: whether to show a progress bar; by default only in a terminal.

    >>> import limelight as ll
    >>> effects = ll.cause("minilm", "The animal slept because it was tired.", "it", controls=8)
    >>> effects.forbid.change.shape  # layers, heads, keys
    torch.Size([6, 12, 10])
    """
    check_whole("controls", controls, 0)
    runner = runner_for(model, text, tokenizer=tokenizer)
    places = find_tokens(token, runner.tokens)
    if len(places) != 1:
        raise OptionError(f"token must be one token, found {token!r}, which is tokens {places}")
    place = places[0]
    runner = runner.upto(place)
    with eval_mode(runner.model), through_the_seam(runner.model), torch.no_grad():
        clean = CleanRun(runner, place, progress=progress)
        if not clean.layers:
            raise OptionError(
                f"{runner.name} makes no attention call that goes through limelight: its layers "
                "must be limelight's own, drop-ins for PyTorch's, or those of a Hugging Face model "
                "on the attention interface"
            )
        measured = _measure(clean, controls, seed)
    prompt = text if isinstance(text, str) else ""
    return _result(clean, prompt, measured, seed)


def _measure(clean: CleanRun, controls: int, seed: int) -> dict[str, Any]:
    """The effects and the gradient: the fields of `Cause` that take runs of the model."""
    n, h = len(clean.runner.inputs), clean.layers[0].extent.h
    keys, layers, heads = torch.arange(n), torch.arange(len(clean.layers)), torch.arange(h)
    by_head = Cuts.of(layers[:, None, None], heads[:, None], clean.place, keys)
    by_layer = Cuts.of(layers[:, None], ALL, clean.place, keys)
    everywhere = Cuts.of(torch.tensor(ALL), ALL, clean.place, keys)
    from_all = everywhere._replace(query=torch.full_like(keys, ALL))
    random_cuts, random_links = _random_links(clean, controls, seed)
    head_rows = Cuts.of(layers[:, None], heads, clean.place, torch.tensor(0))
    all_rows = Cuts.of(torch.tensor(ALL), ALL, clean.place, torch.tensor([0]))
    return {
        "forbid": clean.cut(by_head, "forbid", "cutting links").view(-1, h, n),
        "zero": clean.cut(by_head, "zero", "zeroing links").view(-1, h, n),
        "layer_forbid": clean.cut(by_layer, "forbid", "layer by layer").view(-1, n),
        "layer_zero": clean.cut(by_layer, "zero", "layer by layer").view(-1, n),
        "everywhere_forbid": clean.cut(everywhere, "forbid", "everywhere"),
        "everywhere_zero": clean.cut(everywhere, "zero", "everywhere"),
        "occluded": clean.cut(from_all, "forbid", "hiding"),
        "uniform": clean.uniform(head_rows, "equal weights").view(-1, h),
        "uniform_everywhere": float(clean.uniform(all_rows, "equal weights").change[0]),
        "control": clean.cut(random_cuts, "forbid", "random links"),
        "control_links": random_links,
        "gradient": gradient_times_input(clean, seed),
    }


def _random_links(clean: CleanRun, count: int, seed: int) -> tuple[Cuts, tuple[Link, ...]]:
    """Random links of other tokens, each in one head, in order of layers; fewer if fewer exist."""
    weights = [seen.dense() for seen in clean.layers] if count else []
    links: list[Link] = []
    generator = generator_for(seed, 1)
    for number, dense in enumerate(weights):
        dense[:, :, clean.place] = 0.0  # only links that exist, and not the token's own
        candidates = (dense[0] > 0).nonzero()
        share = count * (number + 1) // len(weights) - count * number // len(weights)
        picked = torch.randperm(len(candidates), generator=generator)[:share]
        for head, query, key in candidates[picked].tolist():
            links.append(Link(number, head, query, key, float(dense[0, head, query, key])))
    rows = torch.tensor([link[:4] for link in links], dtype=torch.int64).view(len(links), 4)
    return Cuts(*rows.unbind(1)), tuple(links)


def gradient_times_input(clean: CleanRun, seed: int) -> Tensor:
    """|gradient × input| for each token: n.

    Where tokens are predicted: |Σ_c x_jc ∂ log p(chosen) / ∂ x_jc|. For a final vector f: the size
    of the change of its direction as x_j grows, over random directions r orthogonal to f:
    (mean_r (Σ_c x_jc ∂(r·f)/∂x_jc)²)^½ / ‖f‖. x_j is the token's embedding.
    """
    runner, place = clean.runner, clean.place
    count = 1 if runner.predicts else PROJECTIONS
    rows = runner.rows(count)
    leaves: list[Tensor] = []

    def leaf(_module: Any, _args: Any, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    with torch.enable_grad():
        if rows.is_floating_point():
            rows = rows.clone().requires_grad_()
            leaves.append(rows)
            end = runner.run(rows, place)
        else:
            assert runner.embedding is not None
            hook = runner.embedding.register_forward_hook(leaf)
            try:
                end = runner.run(rows, place)
            finally:
                hook.remove()
        if runner.predicts:
            objective = end.log_softmax(-1)[0, clean.chosen]
        else:
            direction = clean.before.to(end)
            direction = direction / direction.norm()
            drawn = torch.randn(end.shape, generator=generator_for(seed, 2)).to(end)
            drawn = drawn - (drawn @ direction)[:, None] * direction
            objective = (drawn * end).sum() / clean.before.norm().to(end)
        (gradient,) = torch.autograd.grad(objective, leaves[0])
    products = (gradient * leaves[0].detach()).sum(-1).double()
    return products.square().mean(0).sqrt().cpu()


def _result(clean: CleanRun, text: str, measured: dict[str, Any], seed: int) -> Cause:
    runner, place = clean.runner, clean.place
    start = torch.zeros(len(runner.inputs))
    start[place] = 1.0
    weight = torch.stack([seen.rows([place])[0, :, 0] for seen in clean.layers]).cpu()
    norms = torch.stack([value_norms(seen)[0].cpu() for seen in clean.layers])
    result = Cause(
        text=text,
        model=runner.name,
        tokens=tuple(token.text for token in runner.tokens),
        token=place,
        measure="KL" if runner.predicts else "1 − cosine",
        chosen=runner.piece(clean.chosen) if runner.predicts else "",
        weight=weight,
        value_weighted=weight * norms,
        rollout=rolled_out(clean.layers, start),
        link_correlations=(),
        token_correlations=(),
        **measured,
    )
    return replace(
        result,
        link_correlations=correlations(result.by_link, seed=seed),
        token_correlations=correlations(result.by_token, seed=seed),
    )


def _unravelled(index: int, shape: Sequence[int]) -> tuple[int, int, int]:
    """The layer, head and key of an index into flattened links `l h n`."""
    layer, remainder = divmod(index, shape[1] * shape[2])
    return layer, *divmod(remainder, shape[2])
