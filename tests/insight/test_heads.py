"""`heads`: measures equal those of dense weights, and planted heads get their roles."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import limelight as ll
from limelight.insight import head_measures as measures
from limelight.insight.ablation import ablate_role, repeat_loss
from limelight.insight.head_measures import Sums
from limelight.insight.heads import HeadRoles, Score
from limelight.insight.probes import needles, sentences
from limelight.insight.runner import runner_for
from limelight.models.tokens import Tokens
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.sources import Recomputed


@pytest.fixture(scope="module")
def minilm() -> ll.Encoder:
    return ll.load("minilm")


@pytest.fixture(scope="module")
def roles(minilm: ll.Encoder) -> HeadRoles:
    return ll.heads(minilm)


def test_there_are_enough_sentences_and_the_halves_share_no_content_word() -> None:
    first, held = sentences(0), sentences(1)
    assert len(first) + len(held) >= 200
    for role in ("subject", "object", "verb", "adjective", "quality", "state"):
        words = [
            {probe.text[slice(*probe.spans[role])] for probe in half if role in probe.spans}
            for half in (first, held)
        ]
        assert min(map(len, words)) >= 5
        assert not words[0] & words[1]
    probe = next(each for each in first if "pronoun" in each.spans and "adjective" in each.spans)
    assert probe.text[slice(*probe.spans["determiner"])].lower() in ("the", "a", "that", "every")
    assert sentences(0) == sentences(0)
    assert sentences(0) != sentences(0, seed=1)
    for prompt in needles(0):
        assert prompt.answer in prompt.needle


def seen_of(mask: Any = None, alibi: Any = None) -> Seen:
    torch.manual_seed(2)
    q, k, v = torch.randn(1, 4, 40, 8), torch.randn(1, 2, 40, 8), torch.randn(1, 2, 40, 8)
    return ll.attend(q, k, v, mask=mask, bias=alibi, lens=ll.Lens())[1]


@pytest.mark.parametrize(
    ("mask", "alibi"),
    [(None, None), (ll.causal(), None), (ll.causal() & ll.window(6), ll.alibi(4))],
)
def test_single_weights_and_sums_are_those_of_the_dense_weights(mask: Any, alibi: Any) -> None:
    seen = seen_of(mask, alibi)
    dense = seen.dense()
    queries, keys = torch.randint(40, (2, 90))
    result = measures.pair_weights(seen, queries, keys)
    torch.testing.assert_close(result, dense[:, :, queries, keys], atol=1e-6, rtol=1e-4)
    channels = torch.randn(1, 2, 40, 3)
    expected = dense @ channels.repeat_interleave(2, dim=1)
    torch.testing.assert_close(measures.key_sums(seen, channels), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(measures.visible_counts(seen), (dense[0, 0] > 0).sum(-1).double())


@pytest.mark.parametrize("low", [-1e9, -1e5, torch.finfo(torch.float32).min])
def test_single_weights_are_exact_where_all_scores_of_a_row_are_large(low: float) -> None:
    """log n is lost beside them in a float32 log-sum-exp: each weight was 1 instead of 1/n."""
    q, k, v = (torch.randn(1, 2, 40, 8) for _ in range(3))
    _, seen = ll.attend(q, k, v, bias=torch.full((40, 40), low), lens=ll.Lens())
    queries, keys = torch.randint(40, (2, 90))
    found = measures.pair_weights(seen, queries, keys)
    torch.testing.assert_close(found, seen.dense()[:, :, queries, keys])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_over_keys_count_sinks(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(1, 2, 9, 8).to(dtype) for _ in range(3))
    call = ll.AttentionCall(q, k, v, mask=ll.causal(), sinks=torch.tensor([0.5, 2.0]))
    _, seen = call.attend(lens=ll.Lens())
    channels = torch.randn(1, 2, 9, 3)
    expected = seen.dense().float() @ channels
    assert float(seen.dense().sum(-1).max()) < 0.95
    torch.testing.assert_close(measures.key_sums(seen, channels), expected, atol=2e-2, rtol=0)


@pytest.mark.parametrize("mask", [None, ll.causal()])
def test_value_weighted_shares_are_those_of_the_dense_weights(mask: Any) -> None:
    seen = seen_of(mask)
    dense, queries, keys = seen.dense().double(), *torch.randint(40, (2, 90))
    assert isinstance(seen.source, Recomputed)
    sizes = seen.source.problem.value.norm(dim=-1).repeat_interleave(2, dim=1)
    carried = dense * sizes[:, :, None]
    expected = (carried / carried.sum(-1, keepdim=True))[:, :, queries, keys]
    raw, shares = measures.pair_shares(seen, queries, keys)
    torch.testing.assert_close(shares, expected, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(raw, dense[:, :, queries, keys], atol=1e-6, rtol=1e-4)


def test_every_role_but_the_broad_one_has_a_value_weighted_form(roles: HeadRoles) -> None:
    without = {name for name, score in roles.scores.items() if score.value_weighted is None}
    assert without == {"broad"}
    # both forms are shares of a row, and they differ
    local = roles.scores["local"]
    assert local.value_weighted is not None
    assert float(local.held_out.max()) <= 1.0 + 1e-6
    assert float(local.value_weighted.max()) <= 1.0 + 1e-6
    assert float((local.held_out - local.value_weighted).abs().max()) > 0.01


def test_shipped_labels_are_current(roles: HeadRoles) -> None:
    assert ll.head_labels("minilm") == roles.labels()


@pytest.mark.soak
def test_shipped_labels_of_the_decoder_are_current() -> None:
    assert ll.head_labels("smollm2") == ll.heads("smollm2").labels()


def test_merged_sums_are_those_of_both_corpora() -> None:
    first, second, both = Sums(), Sums(), Sums()
    for number in range(6):
        values = torch.rand(2, 3)
        (first if number % 2 else second).add("x", values, 2)
        both.add("x", values, 2)
    first.merge(second)
    torch.testing.assert_close(first.mean("x"), both.mean("x"))


def test_planted_heads_are_recognised() -> None:
    """Induction and duplicate-token heads, planted by a bias on their scores."""
    size, n = 48, 97
    runner = runner_for(
        ll.Decoder(ll.Config.llama(vocabulary=500, width=16, layers=1, heads=4)), torch.arange(5)
    )

    def plant(call: ll.AttentionCall) -> torch.Tensor:
        if call.query.shape[2] != n:
            return call.attend()
        b, h, i, j = *call.query.shape[:3], call.key.shape[2]
        places = torch.arange(n)
        bias = torch.zeros(h, i, j)
        bias[1, places[size:], places[size:] - size + 1] = 20.0  # what followed last time
        bias[2, places[size:], places[size:] - size] = 20.0
        return call.replace(bias=bias[None].expand(b, -1, -1, -1).contiguous()).attend()

    sums = Sums()
    with ll.intercept(plant):
        measures.repeats(sums, runner, torch.arange(3, 500), 1, 0)
    induction, duplicate = sums.mean("induction")[0], sums.mean("duplicate token")[0]
    assert float(induction[1]) > 0.99
    assert float(duplicate[2]) > 0.99
    chance = float(sums.mean("chance induction"))
    assert chance == pytest.approx(sum(1 / (i + 1) for i in range(49, 97)) / 48)
    assert float(induction[0]) < chance + 0.05


def test_minilm_has_the_heads_that_it_is_known_for(roles: HeadRoles) -> None:
    assert "previous" in roles.roles(0, 2)
    assert "next" in roles.roles(1, 8)
    layer, head, score = roles.top("determiner–noun →", 1)[0]
    assert roles.top("determiner-noun", 1)[0] == (layer, head, score)
    assert score > roles.scores["determiner–noun →"].chance + 0.1
    assert "determiner–noun →" in roles.roles(layer, head)
    assert "induction" not in {
        name for x in range(6) for y in range(12) for name in roles.roles(x, y)
    }
    assert 0.1 < roles.sink_share < 0.6
    assert float(roles.entropy.min()) > 0


def test_a_role_that_holds_on_one_half_only_is_not_assigned() -> None:
    high, low = torch.tensor([[0.9]]), torch.tensor([[0.05]])
    assert not bool(Score(high, low, 0.0, 0.2).assigned)
    assert not bool(Score(low, high, 0.0, 0.2).assigned)
    assert bool(Score(high, high, 0.0, 0.2).assigned)
    assert not bool(Score(high, high, 0.8, 0.2).assigned)


def test_the_result_saves_its_figure_and_gives_tables(roles: HeadRoles, tmp_path: Any) -> None:
    roles.save(tmp_path / "heads.png")
    assert (tmp_path / "heads.png").stat().st_size > 10_000
    values = json.loads(roles.to_json())
    assert len(values["roles"]) == 6
    assert "previous" in values["roles"][0][2]
    assert len(roles.head_table().rows) == 72
    with pytest.raises(ll.LimelightError, match="role must be one of"):
        roles.top("cooking")


def test_too_little_text_is_refused(minilm: ll.Encoder) -> None:
    with pytest.raises(ll.LimelightError, match="two pieces of text"):
        ll.heads(minilm, ["only one short piece of text is here to be read"])


def test_a_plain_module_is_read_with_a_tokenizer() -> None:
    """PyTorch's own encoder, one of whose heads is made to look at itself."""
    torch.manual_seed(1)

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(64, 16)
            self.positions = torch.nn.Parameter(8 * torch.randn(1024, 16))
            layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            layer.self_attn.in_proj_weight.data[:16] = torch.eye(16)
            layer.self_attn.in_proj_weight.data[16:32] = torch.eye(16)
            self.encoder = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.encoder(self.embedding(ids) + self.positions[: ids.shape[1]])

    vocabulary = {chr(97 + number): number for number in range(26)} | {"?": 26}
    letters = Tokenizer(models.WordLevel(vocabulary, "?"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, unk_token="?")
    texts = [sentence.text * 2 for sentence in sentences(0)[:4]]
    result = ll.heads(Plain().eval(), texts, tokenizer=tokenizer)
    assert result.roles(0, 0)[0] == result.roles(0, 1)[0] == "self"
    with pytest.raises(ll.LimelightError, match="has no tokenizer: give tokenizer="):
        ll.heads(Plain().eval(), texts)


def test_heads_taken_out_add_nothing() -> None:
    """The loss is that of a model whose W_o has zeros in their columns; random draws leave them."""
    torch.manual_seed(3)
    config = ll.Config.llama(vocabulary=20, width=32, layers=2, heads=4, head_size=8)
    model = ll.Decoder(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(3)
    model.tokens = Tokens.characters("abcdefghijklmnop")
    score = torch.tensor([[0.1, 0.9, 0.2, 0.0], [0.3, 0.0, 0.1, 0.8]])
    scores = {name: Score(score, score, 0.0, 0.2) for name in ("induction", "first")}
    roles = HeadRoles("small", 1, scores, torch.zeros(2, 4), torch.zeros(2, 4))
    result = ablate_role(model, roles, count=2, draws=3)
    assert result.heads == ((0, 1), (1, 3))
    assert result.baseline == repeat_loss(model)
    assert len(result.random) == len(result.drawn) == 3
    assert all(not set(heads) & set(result.heads) and len(heads) == 2 for heads in result.drawn)
    for layer, head in result.heads:
        model.stack.blocks[layer].attention.output.weight.data[:, 8 * head : 8 * head + 8] = 0
    assert result.without == pytest.approx(repeat_loss(model), abs=1e-5)
    assert result.without != pytest.approx(result.baseline, abs=1e-3)
    assert result.costlier_than == sum(result.without > loss for loss in result.random)
    assert result.table().rows[1] == ("without 0·1, 1·3 (induction)", result.without)
    document = json.loads(result.to_json())
    assert document["heads"] == [[0, 1], [1, 3]]
    assert (
        document["roles"]["scores"]["induction"]["held_out"]
        == roles.scores["induction"].held_out.tolist()
    )
    assert "<img" in result._repr_html_()
    with pytest.raises(ll.LimelightError, match="taken out of a decoder"):
        ablate_role(torch.nn.Linear(2, 2), roles)
