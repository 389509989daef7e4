"""`cause`: effects equal those of cutting by hand, on every kind of model, and are repeatable."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.seeing.hf_models import DECODERS
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
)

import limelight as ll
from limelight.insight.cause import Cause
from limelight.insight.head_measures import key_sums
from limelight.insight.interventions import ALL, CleanRun, Cuts
from limelight.insight.rank_correlation import DRAWS, correlations, spearman
from limelight.insight.rollout import Rollout, row_times_weights
from limelight.insight.runner import runner_for
from limelight.rng import generator_for

TEXT = "The animal slept because it was tired."


@pytest.fixture(scope="module")
def minilm() -> ll.Encoder:
    return ll.load("minilm")


@pytest.fixture(scope="module")
def result(minilm: ll.Encoder) -> Cause:
    return ll.cause(minilm, TEXT, "it", controls=6)


def small_decoder(seed: int = 0) -> ll.Decoder:
    torch.manual_seed(seed)
    config = ll.Config.llama(vocabulary=60, width=32, layers=3, heads=4, kv_heads=2)
    model = ll.Decoder(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(4)
    return model


def test_each_change_equals_that_of_cutting_by_hand(minilm: ll.Encoder, result: Cause) -> None:
    assert minilm.tokens is not None
    ids = torch.tensor([minilm.tokens.encode(TEXT).ids])
    with torch.no_grad():
        before = minilm(ids)[0, result.token].double()
    for how, effect in (("forbid", result.forbid), ("zero", result.zero)):
        for layer, head, key in [(0, 2, 4), (3, 1, 2), (5, 11, 2)]:
            link = ll.Link(layer, head, result.token, key)
            with torch.no_grad(), ll.cutting(minilm, [link], how):  # pyright: ignore
                after = minilm(ids)[0, result.token].double()
            change = 1 - torch.cosine_similarity(before, after, dim=0)
            assert float(effect.change[layer, head, key]) == pytest.approx(float(change), abs=1e-6)
    every = [ll.Link(layer, head, result.token, 2) for layer in range(6) for head in range(12)]
    with torch.no_grad(), ll.cutting(minilm, every):
        after = minilm(ids)[0, result.token].double()
    change = float(1 - torch.cosine_similarity(before, after, dim=0))
    assert float(result.everywhere_forbid.change[2]) == pytest.approx(change, abs=1e-6)


@pytest.mark.parametrize("predicts", [False, True])
def test_without_controls_all_other_numbers_are_the_same(
    minilm: ll.Encoder, result: Cause, predicts: bool
) -> None:
    model = small_decoder() if predicts else minilm
    text = torch.tensor([3, 14, 15, 9]) if predicts else TEXT
    token = 3 if predicts else "it"
    without = ll.cause(model, text, token, controls=0)
    few = ll.cause(model, text, token, controls=2) if predicts else result
    assert without.control_links == ()
    assert without.control.change.shape == (0,)
    assert (without.control.log_prob is None) == (few.control.log_prob is None)
    torch.testing.assert_close(without.forbid.change, few.forbid.change)
    assert "random link" in few.verdict
    assert "random link" not in without.verdict
    assert "nan" not in without.verdict
    without.figure()
    json.loads(without.to_json())


def test_weights_equal_the_recording_and_the_verdict_names_the_strongest_cut(
    minilm: ll.Encoder, result: Cause
) -> None:
    rec = ll.look(TEXT, minilm)
    torch.testing.assert_close(result.weight[3, 1], rec.weights(3, 1)[result.token])
    assert float(result.rollout.sum()) == pytest.approx(1.0)
    most = result.tokens[int(result.everywhere_forbid.change.argmax())]
    assert f'→ "{most}" everywhere' in result.verdict
    assert "may repair a cut" in result.verdict
    (rho,) = [c for c in result.link_correlations if (c.first, c.second) == ("weight", "cut")]
    assert rho.low < rho.rho < rho.high
    assert rho.rho == pytest.approx(
        float(spearman(result.weight.flatten(), result.forbid.change.flatten()))
    )


def test_cached_runs_of_a_decoder_equal_whole_runs() -> None:
    model, ids = small_decoder(), torch.randint(60, (9,))
    result = ll.cause(model, ids, 7, controls=4)
    assert result.measure == "KL"
    assert len(result.tokens) == 8  # later tokens have no effect
    with torch.no_grad():
        before = model(ids[None])[0, 7].double().log_softmax(-1)
        for layer, head, key in [(0, 1, 3), (2, 3, 0), (1, 0, 7)]:
            with ll.cutting(model, [ll.Link(layer, head, 7, key)], "zero"):
                after = model(ids[None])[0, 7].double().log_softmax(-1)
            change = float((before.exp() * (before - after)).sum())
            measured = float(result.zero.change[layer, head, key])
            assert measured == pytest.approx(change, rel=1e-4, abs=1e-7)
            assert result.zero.log_prob is not None
            moved = float((after - before)[before.argmax()])
            assert float(result.zero.log_prob[layer, head, key]) == pytest.approx(moved, abs=1e-4)


KINDS: dict[str, dict[str, Any]] = {
    "post": {"kind": "encoder", "order": "post", "embedding": "normed"},
    "rotary": {"kind": "encoder", "order": "pre", "positions": "rotary"},
    "window": {"kind": "encoder", "order": "pre", "positions": "alibi", "window": 2},
    "late": {"kind": "encoder", "order": "late"},
    "sandwich": {
        "kind": "decoder", "order": "sandwich", "positions": "rotary", "norm": "rms",
        "head_norm": True, "window": 3, "global_layers": (1,), "kv_heads": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_runs_resumed_at_a_layer_equal_whole_runs(name: str) -> None:
    """Cuts, equal weights and links of other tokens, in every form that our models have."""
    torch.manual_seed(2)
    config = ll.Config(vocabulary=60, width=32, layers=3, heads=4, context=32, **KINDS[name])
    model = (ll.Decoder if config.kind == "decoder" else ll.Encoder)(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(8)
    ids = torch.randint(60, (8,))
    place = 7 if config.kind == "decoder" else 4
    result = ll.cause(model, ids, place, controls=5)
    clean = CleanRun(runner_for(model, ids), place)
    whole = CleanRun(runner_for(model, ids), place)
    whole._patcher = None
    for layer in range(3):
        for head in (2, ALL):
            cuts = Cuts.of(torch.tensor(layer), head, place, torch.arange(8))
            for how in ("forbid", "zero"):
                slow = whole.cut(cuts, how, "").change  # pyright: ignore[reportArgumentType]
                fast = clean.cut(cuts, how, "").change  # pyright: ignore[reportArgumentType]
                torch.testing.assert_close(fast, slow, atol=1e-6, rtol=1e-4)
                if head != ALL:
                    own = getattr(result, how).change[layer, head]
                    torch.testing.assert_close(own, fast, atol=1e-6, rtol=1e-4)
            even = clean.uniform(cuts.part(slice(0, 1)), "").change
            torch.testing.assert_close(
                even, whole.uniform(cuts.part(slice(0, 1)), "").change, atol=1e-6, rtol=1e-4
            )
    rows = torch.tensor([link[:4] for link in result.control_links])
    slow = whole.cut(Cuts(*rows.unbind(1)), "forbid", "").change
    torch.testing.assert_close(result.control.change, slow, atol=1e-6, rtol=1e-4)
    assert float(result.forbid.change.max()) > 1e-3


def test_a_row_that_has_almost_nothing_left_is_cut_exactly() -> None:
    """A weight of 1 beside weights below float32's precision: the rest is still a softmax."""
    torch.manual_seed(0)
    config = ll.Config(kind="encoder", vocabulary=9, width=16, layers=2, heads=2, context=8)
    model = ll.Encoder(config).eval()
    model.stack.blocks[0].attention.inputs.weight.data.mul_(400)
    ids = torch.randperm(9)[:6]
    result = ll.cause(model, ids, 3, controls=0)
    top = int(result.weight[0, 1].argmax())
    assert float(result.weight[0, 1].sort().values[-2]) < 1e-20
    with torch.no_grad():
        before = model(ids[None])[0, 3].double()
        with ll.cutting(model, [ll.Link(0, 1, 3, top)]):
            after = model(ids[None])[0, 3].double()
    change = float(1 - torch.cosine_similarity(before, after, dim=0))
    assert float(result.forbid.change[0, 1, top]) == pytest.approx(change, abs=1e-6)
    assert change > 1e-4


@torch.no_grad()
def test_a_row_that_a_zeroed_link_leaves_below_1_is_cut_as_by_hand() -> None:
    """Inside `cutting(..., "zero")` the softmax still counts the zeroed link."""
    torch.manual_seed(3)
    config = ll.Config(kind="encoder", vocabulary=60, width=32, layers=2, heads=4, context=16)
    model = ll.Encoder(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(8)
    ids, place = torch.randint(60, (8,)), 4
    zeroed = int(ll.look(ids, model).weights(0, 2)[place].argmax())
    with ll.cutting(model, [ll.Link(0, 2, place, zeroed)], "zero"):
        result = ll.cause(model, ids, place, controls=0)
        before = model(ids[None])[0, place].double()
        for how, effect in (("forbid", result.forbid), ("zero", result.zero)):
            for key in range(8):
                link = ll.Link(0, 2, place, key)
                with ll.cutting(model, [link], how):  # pyright: ignore[reportArgumentType]
                    after = model(ids[None])[0, place].double()
                change = float(1 - torch.cosine_similarity(before, after, dim=0))
                assert float(effect.change[0, 2, key]) == pytest.approx(change, abs=1e-6)


class Plain(nn.Module):
    """An encoder of PyTorch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(99, 32)
        self.positions = nn.Parameter(torch.randn(16, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.encoder(self.embedding(ids) + self.positions[: ids.shape[1]])


class CausalBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inputs, self.output = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inputs(self.norm(x)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.output(heads.transpose(1, 2).flatten(2))


class Nano(nn.Module):
    """A small GPT that gives (logits, loss), with `last` the logits of its last token only."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.last = last
        self.tokens, self.places = nn.Embedding(99, 32), nn.Embedding(16, 32)
        self.blocks = nn.ModuleList([CausalBlock() for _ in range(2)])
        self.head = nn.Linear(32, 99)

    def forward(self, ids: Tensor) -> tuple[Tensor, None]:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, [-1]] if self.last else x), None


FOREIGN: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: BertModel(BertConfig(**_SIZES)),
    "classifier": lambda: BertForSequenceClassification(BertConfig(**_SIZES)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    ),
    "llama": DECODERS["llama"],
    "plain": Plain,
    "nano": lambda: Nano(last=False),
    "nano last": lambda: Nano(last=True),
}
_SIZES: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "hidden_act": "gelu",
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
@torch.no_grad()
def test_changes_of_foreign_models_equal_those_of_cutting_by_hand(name: str) -> None:
    torch.manual_seed(5)
    model, ids = FOREIGN[name]().eval(), torch.randint(99, (7,))
    for parameter in model.parameters():
        parameter.mul_(2)
    result = ll.cause(model, ids, 6, controls=4)
    predicts = name in ("gpt2", "llama", "nano", "nano last")
    assert result.measure == ("KL" if predicts else "1 − cosine")
    assert result.forbid.change.shape == (2, 4, 7)
    assert len(result.control_links) == 4

    def final_output() -> Tensor:
        outputs: Any = (model.bert if name == "classifier" else model)(ids[None])
        if isinstance(outputs, tuple):
            outputs = outputs[0]
        elif not isinstance(outputs, Tensor):
            outputs = outputs.logits if predicts else outputs.last_hidden_state
        return outputs[0, -1].double()

    before, (head, key) = final_output(), divmod(int(result.forbid.change[1].argmax()), 7)
    with ll.cutting(model, [ll.Link(1, head, 6, key)]):
        after = final_output()
    if predicts:
        p, q = before.log_softmax(-1), after.log_softmax(-1)
        change = float((p.exp() * (p - q)).sum())
    else:
        change = float(1 - torch.cosine_similarity(before, after, dim=0))
    assert float(result.forbid.change[1, head, key]) == pytest.approx(change, abs=1e-6, rel=1e-3)
    assert change > 1e-6
    assert bool((result.gradient > 0).all())


def test_equal_weights_give_the_mean_of_the_visible_values() -> None:
    model, ids = small_decoder(3), torch.randint(60, (6,))
    result = ll.cause(model, ids, 5, controls=0)
    with torch.no_grad():
        before = model(ids[None])[0, 5].double().log_softmax(-1)

        def uniform(call: ll.AttentionCall) -> Tensor:
            output = call.attend().clone()
            if call.layer == 1:
                output[:, 3, 5] = call.value[:, 1].mean(1)
            return output

        with ll.intercept(uniform, model):
            after = model(ids[None])[0, 5].double().log_softmax(-1)
    expected = float((before.exp() * (before - after)).sum())
    assert float(result.uniform.change[1, 3]) == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_the_same_seed_gives_the_same_numbers() -> None:
    model, ids = small_decoder(1), torch.randint(60, (6,))
    first, second = (ll.cause(model, ids, 4, controls=5, seed=3).to_json() for _ in range(2))
    assert first == second
    assert json.loads(first)["token"] == 4


def test_the_rollout_of_a_long_text_shows_its_largest_shares() -> None:
    shares = torch.arange(2000, dtype=torch.float64) / 1_999_000
    tokens = tuple(f"t{j}" for j in range(2000))
    result = Rollout("a text", tokens, 1999, shares)
    table = result.table()
    assert [row[0] for row in table.rows] == list(range(1952, 2000))
    assert "the 48 largest of 2,000" in table.title
    assert result.figure().get_figheight() < 15
    assert len(json.loads(result.to_json())["shares"]) == 2000


@pytest.mark.parametrize("kind", ["minilm", "grouped", "dense weights"])
def test_rollout_is_the_dense_product(kind: str, minilm: ll.Encoder) -> None:
    if kind == "minilm":
        rec = ll.look(TEXT, minilm)
    elif kind == "grouped":
        config = ll.Config.llama(vocabulary=20, width=32, layers=3, heads=4, kv_heads=2)
        rec = ll.look(torch.randint(20, (12,)), ll.Decoder(config).eval())
    else:
        weights = [torch.rand(3, 6, 6).softmax(-1) for _ in range(3)]
        rec = ll.Recording.of_weights(weights, list("abcdef"))
    n = len(rec.tokens)
    product = torch.eye(n, dtype=torch.float64)
    for seen in rec.layers:
        product = (0.5 * torch.eye(n) + 0.5 * seen.dense()[0].mean(0)).double() @ product
    for token in (0, 3):
        shares = ll.rollout(rec, token).shares
        torch.testing.assert_close(shares, product[token], atol=1e-6, rtol=0)
        assert float(shares.sum()) == pytest.approx(1.0, abs=1e-6)


def test_rollout_and_key_sums_include_a_bias_added_to_alibi() -> None:
    q, k, v = (torch.randn(1, 2, 6, 8) for _ in range(3))
    _, seen = ll.attend(q, k, v, bias=ll.alibi(2) + torch.randn(6, 6), lens=ll.Lens())
    row = torch.rand(6, dtype=torch.float64)
    expected = row @ seen.dense()[0].mean(0).double()
    torch.testing.assert_close(row_times_weights(seen, row), expected, atol=1e-6, rtol=0)
    sums = key_sums(seen, v)
    torch.testing.assert_close(sums, seen.dense() @ v, atol=1e-6, rtol=1e-5)


def test_the_result_saves_its_figure_and_gives_tables(result: Cause, tmp_path: Any) -> None:
    result.save(tmp_path / "cause.png")
    assert (tmp_path / "cause.png").stat().st_size > 10_000
    assert "animal" in str(result.table())
    assert "<table>" in result._repr_html_()
    assert len(result.link_table(5).rows) == 5


def test_wrong_arguments_raise_errors_that_say_why(minilm: ll.Encoder) -> None:
    for text, token, message in [
        ("", "it", "text is empty"),
        (TEXT, "horse", "'horse' is not among"),
        (TEXT, ["it", "was"], "one token"),
    ]:
        with pytest.raises(ll.LimelightError, match=message):
            ll.cause(minilm, text, token)
    with pytest.raises(ll.LimelightError, match="no attention call"):
        ll.cause(nn.Sequential(nn.Linear(4, 4)), torch.randn(3, 4), 1)
    with pytest.raises(ll.LimelightError, match="has no tokenizer"):
        ll.cause(nn.Linear(4, 4), "words", 1)


def test_correlations_agree_with_scipy_and_their_intervals_with_sorted_resamples() -> None:
    from scipy import stats

    x = torch.randn(60).round(decimals=1)  # with ties
    y = x + torch.randn(60)
    (rho,) = correlations({"x": x, "y": y}, seed=2)
    assert rho.rho == pytest.approx(stats.spearmanr(x, y).statistic)
    draws = torch.randint(60, (DRAWS, 60), generator=generator_for(2, 60))
    interval = spearman(x[draws], y[draws]).quantile(torch.tensor([0.025, 0.975]).double())
    assert (rho.low, rho.high) == pytest.approx(interval.tolist())
    assert rho.low < rho.rho < rho.high
