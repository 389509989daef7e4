"""`look`: which texts and models it reads, and what it keeps of them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

import limelight as ll
from limelight.ops.lens.sources import Recomputed
from limelight.seeing.recording.offload import offload


@pytest.fixture(scope="module")
def minilm():
    return ll.load("minilm")


def test_a_model_folder_that_changed_is_loaded_again(minilm, tmp_path):
    folder = tmp_path / "model"
    ll.save(minilm, folder)
    first = ll.look("a cat", folder, layers=[0]).weights(0, 0)
    assert torch.equal(ll.look("a cat", folder, layers=[0]).weights(0, 0), first)
    changed = ll.load(folder)
    with torch.no_grad():
        changed.stack.blocks[0].attention.inputs.weight.mul_(2)
    ll.save(changed, folder)
    assert not torch.allclose(ll.look("a cat", folder, layers=[0]).weights(0, 0), first)


def check_equal(actual: ll.Recording, expected: ll.Recording) -> None:
    assert [token.text for token in actual.tokens] == [token.text for token in expected.tokens]
    for ours, theirs in zip(actual.layers, expected.layers, strict=True):
        torch.testing.assert_close(ours.entropy, theirs.entropy, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours.received, theirs.received, atol=1e-4, rtol=1e-4)


TEXTS = ["A cat sat.", "The animal didn't cross the street because it was too tired.", "Rain."]


def test_packed_texts_equal_each_text_alone(minilm):
    for recording, text in zip(ll.look(TEXTS, minilm), TEXTS, strict=True):
        assert recording.text == text
        check_equal(recording, ll.look(text, minilm))


def test_a_model_without_a_tokenizer_names_tokens_by_their_ids():
    model = ll.Decoder(ll.Config.llama(vocabulary=99, width=16, layers=2, heads=4)).eval()
    lens = ll.Lens(top=2, entropy=True, received=True, keep=False)
    rows = [[5, 6, 7], [8, 9], [3, 3, 3, 4, 5]]
    for row in rows:
        recording = ll.look(row, model, lens)
        assert [token.text for token in recording.tokens] == [str(token) for token in row]
        assert all(seen.source is None for seen in recording.layers)
        check_equal(recording, ll.look(torch.tensor(row), model, lens))


def test_a_recording_keeps_no_memory_but_queries_keys_and_values():
    model = ll.Decoder(ll.Config.llama(vocabulary=99, width=48, layers=2, heads=6, kv_heads=2))
    for seen in ll.look(torch.arange(90), model.eval()).layers:
        assert isinstance(seen.source, Recomputed)
        problem = seen.source.problem
        tensors = (problem.query, problem.key, problem.value)
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in tensors}
        assert problem.key.shape[1] == 2  # not one for each of the heads that share it
        assert sum(map(len, storages.values())) == sum(x.nbytes for x in tensors)


def test_tensors_of_a_long_text_are_mapped_from_disk_and_give_the_same_weights(monkeypatch):
    model = ll.Decoder(ll.Config.llama(vocabulary=99, width=48, layers=2, heads=6, kv_heads=2))
    ids = torch.arange(90)
    seen = ll.look(ids, model.eval()).layers[1]
    moved = offload(seen, calls=2, limit=0)
    assert isinstance(seen.source, Recomputed)
    assert isinstance(moved.source, Recomputed)
    for name in ("query", "key", "value"):
        before, after = getattr(seen.source.problem, name), getattr(moved.source.problem, name)
        assert torch.equal(before, after)
        maps = Path("/proc/self/maps")  # lists which memory is mapped from a file
        mapped = [line for line in maps.read_text().splitlines() if "limelight-" in line]
        assert any(_holds(line, after.data_ptr()) for line in mapped)
    torch.testing.assert_close(moved.dense(), seen.dense(), atol=1e-6, rtol=1e-6)
    part = moved.batch_row(0).heads([3]).tile(slice(5, 9), slice(2, 8))
    torch.testing.assert_close(part, seen.dense()[:, 3:4, 5:9, 2:8], atol=1e-6, rtol=1e-6)
    assert offload(seen, calls=2) is seen  # short texts stay in memory
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert offload(seen, calls=2, limit=0) is seen  # and so do long ones without a writable folder


def _holds(line: str, address: int) -> bool:
    first, last = (int(end, 16) for end in line.split()[0].split("-"))
    return first <= address < last


def test_packed_texts_stay_causal():
    from limelight.models.tokens import Tokens

    tokens = Tokens.characters("abc ")
    config = ll.Config.llama(vocabulary=len(tokens), width=16, layers=2, heads=4)
    model = ll.Decoder(config).eval()
    model.tokens = tokens
    texts = ["abba cab", "b", "cc abc"]
    for several in (texts, texts[:1]):
        for recording, text in zip(ll.look(several, model), several, strict=True):
            check_equal(recording, ll.look(text, model))
            assert float(recording.weights(1, 2).triu(1).abs().max()) == 0


@pytest.mark.parametrize("kind", [ll.Encoder, ll.Decoder])
def test_packed_texts_with_relative_positions(kind):
    from limelight.models.tokens import Tokens

    tokens = Tokens.characters("abc ")
    sizes = {"vocabulary": len(tokens), "width": 16, "layers": 2, "heads": 4, "context": 16}
    model = kind(ll.Config(kind=kind.__name__.lower(), positions="relative", **sizes)).eval()
    torch.nn.init.normal_(model.stack.relative.table)
    model.tokens = tokens
    texts = ["abba cab", "b", "cc abc"]
    for recording, text in zip(ll.look(texts, model), texts, strict=True):
        check_equal(recording, ll.look(text, model))


def test_token_ids_are_decoded_to_their_words(minilm):
    ids = minilm.tokens.encode(TEXTS[1]).ids
    recording = ll.look(ids, minilm)
    assert recording.top(layer=3, head=1, token="it")[0][0] == "animal"
    check_equal(recording, ll.look(TEXTS[1].lower(), minilm))


def test_look_takes_any_module_that_reads_token_ids():
    layer = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.TransformerEncoder(layer, 2))
    recording = ll.look([1, 2, 3, 4], model)
    assert [token.text for token in recording.tokens] == ["1", "2", "3", "4"]
    assert len(recording.layers) == 2
    assert model.training


@pytest.mark.usefixtures("untyped")
def test_invalid_inputs_raise_clear_errors(minilm):
    model = ll.Decoder(ll.Config.llama(vocabulary=99, width=16, layers=2, heads=4)).eval()
    for text, reader, message in (
        ("", minilm, "text is empty"),
        (3.5, minilm, "text must be a str, a list of them or token ids"),
        ([], minilm, "text must be a str, a list of them or token ids"),
        (torch.zeros(2, 2, dtype=torch.long), minilm, r"token ids \(n\), found \(2, 2\)"),
        ([1, 99], model, "token ids go from 1 to 99, expected 0 to 98"),
        ("a text", model, "came without a tokenizer: give token ids instead of a text"),
        ("a text", torch.nn.Linear(2, 2), "a Linear needs its tokenizer= to read a text"),
        ("a text", 7, "model must be a name, a path or a torch.nn.Module, found int"),
    ):
        with pytest.raises(ll.LimelightError, match=message):
            ll.look(text, reader)
