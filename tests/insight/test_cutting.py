"""`cutting` removes links from the weights and changes nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.seeing.hf_models import DECODERS

import limelight as ll
from limelight.insight.cutting import _by_layer, _mask
from limelight.ops.calls import AttentionCall

TEXT = "The animal didn't cross the street because it was too tired."
LINK = ll.Link(layer=3, head=1, query=10, key=2)


@pytest.fixture(scope="module")
def minilm() -> ll.Encoder:
    return ll.load("minilm")


@pytest.fixture
def decoder() -> ll.Decoder:
    config = ll.Config.llama(vocabulary=60, width=32, layers=3, heads=4, kv_heads=2)
    model = ll.Decoder(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(6)
    return model


@pytest.mark.parametrize("how", ["forbid", "zero"])
def test_a_cut_changes_one_row_of_one_head(minilm: ll.Encoder, how: Any) -> None:
    whole = ll.look(TEXT, minilm)
    with ll.cutting(minilm, [LINK], how):
        cut = ll.look(TEXT, minilm)
    expected = whole.weights(3, 1).clone()
    expected[10, 2] = 0.0
    if how == "forbid":
        expected[10] /= expected[10].sum()
    torch.testing.assert_close(cut.weights(3, 1), expected, atol=1e-6, rtol=1e-5)
    for layer, head in [(0, 1), (2, 1)]:
        assert torch.equal(cut.weights(layer, head), whole.weights(layer, head))
    # recomputed with the sums of these rows or of the uncut ones: equal but for rounding
    for head in (0, 11):
        torch.testing.assert_close(cut.weights(3, head), whole.weights(3, head), atol=1e-6, rtol=0)
    assert not torch.equal(cut.weights(4, 1), whole.weights(4, 1))
    assert torch.equal(ll.look(TEXT, minilm).weights(4, 1), whole.weights(4, 1))


@pytest.mark.parametrize("how", ["forbid", "zero"])
def test_links_are_places_in_the_whole_text_when_it_is_read_in_pieces(
    decoder: ll.Decoder, how: Any
) -> None:
    ids = torch.randint(60, (2, 12))
    links = [ll.Link(layer, head, 9, key) for layer in (0, 2) for head in (1, 3) for key in (0, 4)]
    with torch.no_grad(), ll.cutting(decoder, links, how):
        whole = decoder(ids)
        cache = decoder.new_cache()
        pieces = [decoder(piece, cache=cache) for piece in ids.split([5, 4, 1, 2], dim=1)]
    with torch.no_grad():
        plain = decoder(ids)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-4, rtol=1e-4)
    assert torch.equal(plain[:, :9], whole[:, :9])
    assert not torch.allclose(plain[:, 9], whole[:, 9], atol=1e-3)


@pytest.mark.parametrize("name", ["gpt2", "mistral"])
def test_a_hugging_face_model_runs_without_the_link_and_as_before_afterwards(name: str) -> None:
    model = DECODERS[name]()
    ids = torch.randint(99, (1, 8))
    before = model.config._attn_implementation
    with torch.no_grad(), ll.watch(model) as watched, ll.cutting(model, [ll.Link(1, 2, 6, 3)]):
        model(ids)
    row = watched.seen(1).rows([6])[0]
    assert float(row[2, 0, 3]) == 0.0
    assert float(row[1, 0, 3]) > 0.0
    torch.testing.assert_close(row.sum(-1), torch.ones(4, 1))
    assert model.config._attn_implementation == before


def test_the_mask_of_a_long_text_is_linear_in_its_length() -> None:
    x = torch.zeros(1, 4, 5000, 8)
    cuts = _by_layer([ll.Link(0, head, 4000, key) for head in range(4) for key in (3, 7)])
    mask = _mask(AttentionCall(x, x, x), cuts[0])
    assert mask is not None
    assert sum(table.numel() for table in mask.tensors()) <= 4 + 5000 + 5000


def test_cutting_the_only_key_of_a_query_gives_finite_logits(decoder: ll.Decoder) -> None:
    ids = torch.randint(60, (1, 4))
    with torch.no_grad(), ll.cutting(decoder, [ll.Link(0, 0, 0, 0)]):
        assert decoder(ids).isfinite().all()


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("link", "how", "message"),
    [
        (LINK, "delete", "'forbid' or 'zero', found 'delete'"),
        (LINK._replace(head=12), "forbid", "names head 12, expected one of the 12"),
        (LINK._replace(key=-1), "forbid", "key of a link"),
        ((3, 1, 10, 2), "forbid", "links must be Links"),
    ],
)
def test_wrong_arguments_raise_errors_that_say_why(
    minilm: ll.Encoder, link: Any, how: Any, message: str
) -> None:
    with pytest.raises(ll.LimelightError, match=message), ll.cutting(minilm, [link], how):
        ll.look(TEXT, minilm)
