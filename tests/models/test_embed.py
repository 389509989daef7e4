"""Sentence embeddings: equal to sentence-transformers, in the order of the texts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import limelight as ll
from limelight.errors import FileError, OptionError, UnavailableError
from limelight.models.embedding import embed as embed_module
from limelight.models.embedding.pooling import Pooling
from limelight.models.loading.folder import folder_pooling
from limelight.models.tokens import Tokens

SENTENCES = [
    "The animal didn't cross the street because it was too tired.",
    "Short.",
    "",
    "A much longer sentence, with many words in it, to be cut at the limit: " * 12,
    "Café déjà vu 東京 🙂",
    "short.",
    *(f"Sentence number {number} " + "goes on and on " * (number % 13) for number in range(90)),
]


def test_equals_sentence_transformers(minilm: ll.Encoder, minilm_folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(minilm_folder), device="cpu")
    expected = theirs.encode(SENTENCES, convert_to_tensor=True)
    ours = minilm.embed(SENTENCES)
    assert ours.shape == (len(SENTENCES), 384)
    assert (ours - expected).abs().max() < 1e-5


def test_one_text_is_one_vector(minilm: ll.Encoder) -> None:
    both = minilm.embed(SENTENCES[:2])
    assert torch.allclose(minilm.embed(SENTENCES[0]), both[0], atol=1e-6)
    assert minilm.embed([]).shape == (0, 384)
    assert not both.requires_grad
    assert not both.is_inference()


def test_vectors_do_not_depend_on_the_size_of_a_pass(
    minilm: ll.Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = minilm.embed(SENTENCES)
    monkeypatch.setattr(embed_module, "PASS_TOKENS", 40)
    assert torch.allclose(minilm.embed(SENTENCES), expected, atol=1e-6)


def test_progress_goes_to_stderr(
    minilm: ll.Encoder, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a moving bar needs a terminal, which pytest is not
    minilm.embed(SENTENCES[:3], progress=True)
    captured = capfd.readouterr()
    assert "embedding" in captured.err
    assert "100%" in captured.err
    assert captured.out == ""
    minilm.embed(SENTENCES[:3])
    assert capfd.readouterr().err == ""


def test_each_kind_of_pooling() -> None:
    torch.manual_seed(0)
    model = ll.Encoder(ll.Config.bert(vocabulary=20, width=16, layers=1, heads=2, context=9)).eval()
    with pytest.raises(UnavailableError, match="without a tokenizer"):
        model.embed("abc")
    from limelight.models.tokens import Tokens

    model.tokens = Tokens.characters("abcdefghijklm")
    texts = ["abc", "ddddefgh", "a"]
    with torch.no_grad():
        hidden = [model(torch.tensor([model.tokens.encode(text).ids]))[0] for text in texts]
    means = torch.stack([states.mean(0) for states in hidden])
    firsts = torch.stack([states[0] for states in hidden])
    assert torch.allclose(model.embed(texts), means, atol=1e-6)
    model.pooling = Pooling("first")
    assert torch.allclose(model.embed(texts), firsts, atol=1e-6)
    model.pooling = Pooling("mean", normalise=True)
    assert torch.allclose(model.embed(texts).norm(dim=-1), torch.ones(3), atol=1e-6)
    model.pooling = Pooling(limit=3)
    assert torch.allclose(model.embed("abcdef"), model.embed("abc"), atol=1e-6)
    # Without a limit a text is truncated to the learned positions of the model.
    model.pooling = Pooling()
    assert torch.allclose(model.embed("abcabcabcabc"), model.embed("abcabcabc"), atol=1e-6)
    with pytest.raises(OptionError, match=r"texts\[1\] has no tokens"):
        model.embed(["a", ""])


def test_pooling_is_read_from_files(tmp_path: Path, untyped: None) -> None:
    assert folder_pooling(tmp_path) == Pooling()
    modules = tmp_path / "modules.json"
    modules.write_text(
        '[{"path": "", "type": "x.Transformer"}, {"path": "p", "type": "x.Pooling"}]'
    )
    with pytest.raises(FileError, match=r"p/config\.json: no such file"):
        folder_pooling(tmp_path)
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    assert folder_pooling(tmp_path) == Pooling("first")
    (tmp_path / "p" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(FileError, match=r"pooling \['max'\] is unknown"):
        folder_pooling(tmp_path)
    modules.write_text('[{"path": "", "type": "x.Dense"}]')
    with pytest.raises(FileError, match=r"module 'Dense' is unknown"):
        folder_pooling(tmp_path)
    modules.write_text("{}")
    with pytest.raises(FileError, match="holds a dict, expected a JSON list"):
        folder_pooling(tmp_path)
    with pytest.raises(OptionError, match="pooling kind"):
        Pooling("max")  # pyright: ignore
    with pytest.raises(OptionError, match="pooling limit"):
        Pooling(limit=0)


def test_an_encoder_that_overflows_raises() -> None:
    encoder = ll.Encoder(
        ll.Config(kind="encoder", vocabulary=27, width=8, layers=1, heads=2, context=8)
    )
    encoder.tokens = Tokens.characters("abcdefghijklmnopqrstuvwxyz")
    torch.nn.init.constant_(encoder.embedding.tokens.weight, float("inf"))
    with pytest.raises(OptionError, match="vectors that are not finite"):
        encoder.embed(["abc"])
