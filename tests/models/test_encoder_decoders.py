"""Encoder-decoders and vision transformers in Hugging Face folders: the numbers of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

import limelight as ll
from limelight.cli.app import app
from limelight.errors import FileError, OptionError, ShapeError

BART = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
VIT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "image_size": 48, "patch_size": 16,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("BartForConditionalGeneration", {}),
    "bart scaled, without a head": ("BartModel", {"scale_embedding": True}),
    "mbart": ("MBartForConditionalGeneration", {"scale_embedding": True}),
    "plbart": ("PLBartForConditionalGeneration", {}),
    "marian": ("MarianMTModel", {"activation_function": "swish", "scale_embedding": True}),
    "pegasus": ("PegasusForConditionalGeneration", {"activation_function": "relu"}),
}
WORDS = [
    "<pad>", "<s>", "</s>", "the", "old", "man", "saw", "a", "fish", "in", "water", "and", "went",
    "home",
]  # fmt: skip


def scrambled(peer: Any) -> Any:
    """Random norms and biases too: ones and zeros would hide a mistake."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            if "embed_positions" not in name or "Bart" in type(peer).__name__:
                parameter.normal_(std=0.2 if parameter.ndim == 2 else 0.5)
        if hasattr(peer, "final_logits_bias"):
            peer.final_logits_bias.normal_()
    return peer.eval()


def saved(name: str, folder: Path) -> Any:
    kind, changes = FAMILIES[name]
    maker = getattr(transformers, kind)
    peer = scrambled(maker(maker.config_class(**BART, **changes)))
    peer.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return peer


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_bart_and_its_relatives(name: str, tmp_path: Path) -> None:
    peer = saved(name, tmp_path)
    model = ll.load(tmp_path)
    assert isinstance(model, ll.Transformer)
    source, target = torch.randint(3, 99, (2, 23)), torch.randint(3, 99, (2, 9))
    mask = torch.ones_like(source)
    mask[1, 15:] = 0
    expected = peer(input_ids=source, attention_mask=mask, decoder_input_ids=target)
    memory = model.encode(source, lengths=[23, 15])
    reference = expected.encoder_last_hidden_state
    torch.testing.assert_close(memory.hidden[0], reference[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(memory.hidden[1, :15], reference[1, :15], atol=1e-4, rtol=0)
    hidden = model.decode(target, memory)
    if name.endswith("head"):
        torch.testing.assert_close(hidden, expected.last_hidden_state, atol=1e-4, rtol=0)
        return
    torch.testing.assert_close(model.logits(hidden), expected.logits, atol=1e-4, rtol=0)
    # Token by token, with a cache.
    cache = model.new_cache()
    steps = [model.decode(target[:, t : t + 1], memory, cache=cache) for t in range(9)]
    torch.testing.assert_close(torch.cat(steps, 1), hidden, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_every_stack_of_bart_can_be_looked_at(tmp_path: Path) -> None:
    peer = saved("bart", tmp_path)
    source, target = "the old man saw a fish in the water", "a man went home"
    model = ll.load(tmp_path)
    ids = torch.tensor([[WORDS.index(word) for word in source.split()]])
    written = [WORDS.index(word) for word in target.split()]
    peer.set_attn_implementation("eager")
    decoder_ids = torch.tensor([[2, *written[:-1]]])
    expected = peer(input_ids=ids, decoder_input_ids=decoder_ids, output_attentions=True)
    stacks = {
        "encoder": (expected.encoder_attentions, source.split(), source.split()),
        "decoder": (expected.decoder_attentions, ["</s>", "a", "man", "went"], None),
        "cross": (expected.cross_attentions, source.split(), target.split()),
    }
    for stack, (weights, tokens, queries) in stacks.items():
        for model_or_folder in (model, tmp_path):
            rec = ll.look(source, model=model_or_folder, target=target, stack=stack)
            assert [token.text for token in rec.tokens] == tokens
            assert [token.text for token in rec.queries] == (queries or tokens)
            for layer, reference in enumerate(weights):
                torch.testing.assert_close(rec.seen(layer).dense(), reference)
    # Without a target the encoder is recorded, with one the cross-attention.
    assert len(ll.look(source, model=model).layers) == 2
    assert len(ll.look(source, model=model, target=target).layers) == 3
    assert [len(rec.tokens) for rec in ll.look([source, "the man"], model=model)] == [9, 2]
    with pytest.raises(OptionError, match="needs a target"):
        ll.look(source, model=model, stack="cross")
    with pytest.raises(OptionError, match="does not take a stack"):
        ll.look(source, stack="encoder")
    ll.save(model, tmp_path / "own")
    again = ll.load(tmp_path / "own")
    torch.testing.assert_close(again(ids, decoder_ids), model(ids, decoder_ids))
    result = CliRunner().invoke(app, ["info", str(tmp_path)], catch_exceptions=False)
    assert "BART transformer" in result.stdout
    assert "config.json: encoder_attention_heads" in result.stdout


@torch.no_grad()
@pytest.mark.parametrize("kind", ["ViTModel", "ViTForImageClassification"])
def test_vit_equals_transformers(kind: str, tmp_path: Path) -> None:
    peer = scrambled(getattr(transformers, kind)(transformers.ViTConfig(**VIT)))
    peer.save_pretrained(tmp_path)
    settings = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    model = ll.load(tmp_path)
    assert isinstance(model, ll.VisionEncoder)
    picture = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    planes = torch.from_numpy(picture).permute(2, 0, 1)[None] / 255
    mean, std = (torch.tensor(settings[name]).view(1, 3, 1, 1) for name in settings)
    pixels = (planes - mean) / std
    peer.set_attn_implementation("eager")
    expected = peer(pixels, output_attentions=True, output_hidden_states=True)
    hidden = model(pixels)
    if kind == "ViTModel":
        torch.testing.assert_close(hidden, expected.last_hidden_state, atol=1e-4, rtol=0)
        with pytest.raises(OptionError, match="no classes"):
            model.logits(hidden)
    else:
        torch.testing.assert_close(model.logits(hidden), expected.logits, atol=1e-4, rtol=0)
    for model_or_folder in (tmp_path, model):
        rec = ll.look(picture, model=model_or_folder)
        assert rec.picture is not None
        assert (rec.picture.rows, rec.picture.columns, rec.picture.leading) == (3, 3, 1)
        for layer, weights in enumerate(expected.attentions):
            torch.testing.assert_close(rec.seen(layer).dense(), weights)
    ll.save(model, tmp_path / "own")
    again = ll.load(tmp_path / "own")
    torch.testing.assert_close(ll.look(picture, model=again).weights(1, 2), rec.weights(1, 2))
    result = CliRunner().invoke(app, ["info", str(tmp_path)], catch_exceptions=False)
    assert "ViT vision" in result.stdout
    assert "config.json: patch_size" in result.stdout
    with pytest.raises(OptionError, match="reads pictures"):
        ll.look("a text", model=model)
    with pytest.raises(OptionError, match="Encoder reads texts"):
        ll.look(picture, model=ll.load("minilm"))
    with pytest.raises(ShapeError, match="expected \\(b, 3, 48, 48\\)"):
        model(pixels[..., :32])
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [1]}')
    with pytest.raises(FileError, match="three numbers"):
        ll.load(tmp_path)


@torch.no_grad()
@pytest.mark.parametrize("layers", [2, 7])
def test_the_text_model_of_a_multimodal_gemma_3(layers: int, tmp_path: Path) -> None:
    text = {
        "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": layers, "head_dim": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 40,
        "max_position_embeddings": 64, "sliding_window": 5,
    }  # fmt: skip
    config = transformers.Gemma3Config(text_config=text, vision_config=VIT)
    peer = scrambled(transformers.Gemma3ForConditionalGeneration(config))
    peer.save_pretrained(tmp_path)
    model = ll.load(tmp_path)
    assert isinstance(model, ll.Decoder)
    tokens = torch.randint(3, 99, (1, 23))
    torch.testing.assert_close(model(tokens), peer(tokens).logits, atol=1e-4, rtol=1e-4)
    assert len(ll.look(tokens[0], model=model).layers) == layers
    result = CliRunner().invoke(app, ["info", str(tmp_path)], catch_exceptions=False)
    assert "config.json: text_config.head_dim" in result.stdout


@pytest.mark.parametrize(
    ("hf", "message"),
    [
        ({"model_type": "bart", "decoder_attention_heads": 8}, "decoder_attention_heads must be"),
        ({"model_type": "bart", "tie_word_embeddings": False}, "tie_word_embeddings must be True"),
        ({"model_type": "vit", "num_channels": 1}, "num_channels must be 3"),
        ({"model_type": "vit", "image_size": "a"}, "image_size must be one or two whole numbers"),
        ({"model_type": "vit", "image_size": 8}, "each of image must be"),
    ],
)
def test_unsupported_configs_raise(hf: dict[str, Any], message: str) -> None:
    from limelight.models.loading.families import config_from_hf

    with pytest.raises(OptionError, match=message):
        config_from_hf(hf)
