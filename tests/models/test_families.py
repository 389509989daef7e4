"""The same weights give the same numbers as in transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from limelight.errors import LimelightError, OptionError
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.models.heads import Classifier, MaskedLM
from limelight.models.loading.families import config_from_hf, family_of

BERT = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA = {**BERT, "num_key_value_heads": 2}
GPT2 = {"vocab_size": 97, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64,
        "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip


def fill(model: nn.Module, peer: transformers.PreTrainedModel) -> None:
    """Load the peer's weights into our model, which must use every one of them."""
    family = family_of(peer.config.to_dict())
    state = {family.plain(name): tensor for name, tensor in peer.state_dict().items()}
    recipes = {name: family.recipe(name) for name in model.state_dict()}
    ours = {name: r.join([state[part] for part in r.parts]) for name, r in recipes.items()}
    model.load_state_dict(ours)
    used = {part for name in ours for part in family.recipe(name).parts}
    left_over = [name for name in state if name not in used and not family.is_unused(name)]
    assert not left_over
    model.eval()


def scrambled(peer: Any) -> Any:
    """Random norms and biases too: ones and zeros would hide a mistake."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(std=0.2 if parameter.ndim == 2 else 0.5)
    return peer.eval()


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(1, 97, (2, 23), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_bert_hidden_states(tokens: Tensor):
    peer = scrambled(transformers.BertModel(transformers.BertConfig(**BERT)))
    model = Encoder(config_from_hf(peer.config.to_dict()))
    fill(model, peer)
    segments = (torch.arange(23) > 10).long().expand(2, -1)
    mask = torch.ones_like(tokens)
    mask[1, 15:] = 0
    expected = peer(tokens, attention_mask=mask, token_type_ids=segments, output_hidden_states=True)
    outputs: list[Tensor] = []
    for block in model.stack.blocks:
        block.register_forward_hook(lambda _, __, y: outputs.append(y))
    hidden = model(tokens, lengths=[23, 15], segments=segments)
    for ours, theirs in zip(outputs, expected.hidden_states[1:], strict=True):
        assert (ours - theirs)[0].abs().max() < 1e-4
        assert (ours - theirs)[1, :15].abs().max() < 1e-4
    assert torch.equal(hidden, outputs[-1])


@torch.no_grad()
def test_bert_heads(tokens: Tensor):
    peer = scrambled(transformers.BertForMaskedLM(transformers.BertConfig(**BERT)))
    model = MaskedLM(Encoder(config_from_hf(peer.config.to_dict())))
    fill(model, peer)
    assert (model(tokens) - peer(tokens).logits).abs().max() < 1e-4

    config = transformers.BertConfig(**BERT, num_labels=5)
    peer = scrambled(transformers.BertForSequenceClassification(config))
    classifier = Classifier(Encoder(config_from_hf(peer.config.to_dict())), classes=5)
    fill(classifier, peer)
    expected = peer(tokens).logits
    assert (classifier(tokens) - expected).abs().max() < 1e-4
    packed = classifier(tokens.flatten(), lengths=[23, 23])
    assert (packed - expected).abs().max() < 1e-4


@torch.no_grad()
@pytest.mark.parametrize("tied", [True, False])
def test_gpt2_logits_and_greedy_continuation(tokens: Tensor, tied: bool):
    config = transformers.GPT2Config(**GPT2, tie_word_embeddings=tied)
    peer = scrambled(transformers.GPT2LMHeadModel(config))
    model = Decoder(config_from_hf(peer.config.to_dict()))
    fill(model, peer)
    assert (model(tokens) - peer(tokens).logits).abs().max() < 1e-4
    assert greedy(model, tokens[:1, :5], 40) == greedy_peer(peer, tokens[:1, :5], 40)


ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_theta": 5000.0},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "yarn with options": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 24,
        "beta_fast": 8.0, "beta_slow": 2.0, "mscale": 1.2, "mscale_all_dim": 0.7,
        "truncate": False,
    },
    "yarn with amplitude": {
        "rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 24,
        "attention_factor": 0.8,
    },
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}  # fmt: skip


def llama(rope: dict[str, Any], kind: str = "llama", **changes: Any) -> Any:
    parameters = {"rope_type": "default", "rope_theta": 10000.0, **rope}
    settings = {**LLAMA, "rope_parameters": parameters, **changes}
    if kind == "llama":
        return scrambled(transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)))
    if kind == "mistral":
        return scrambled(transformers.MistralForCausalLM(transformers.MistralConfig(**settings)))
    return scrambled(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**settings)))


@torch.no_grad()
@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("length", [23, 90])
def test_llama_rotary_scalings(name: str, length: int):
    """Within the trained length and beyond it."""
    peer = llama({"rope_type": name, **ROPES[name]})
    model = Decoder(config_from_hf(peer.config.to_dict()))
    fill(model, peer)
    tokens = torch.randint(1, 97, (2, length), generator=torch.Generator().manual_seed(2))
    expected = peer(tokens, output_hidden_states=True).hidden_states[-1]
    assert (model.hidden(tokens) - expected).abs().max() < 1e-4


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {"attention_bias": True, "head_dim": 12, "tie_word_embeddings": True}),
        ("mistral", {"sliding_window": 7}),
        ("mistral", {"sliding_window": None}),
        ("llama", {"hidden_act": "gelu"}),
        ("qwen2", {}),
        ("qwen2", {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 1}),
    ],
)
def test_llama_and_its_relatives(kind: str, changes: dict[str, Any], tokens: Tensor):
    peer = llama({}, kind, **changes)
    model = Decoder(config_from_hf(peer.config.to_dict()))
    fill(model, peer)
    assert (model(tokens) - peer(tokens).logits).abs().max() < 1e-4
    assert greedy(model, tokens[:1, :5], 64) == greedy_peer(peer, tokens[:1, :5], 64)


def greedy(model: Decoder, tokens: Tensor, count: int) -> list[int]:
    cache, result = model.new_cache(), []
    for _ in range(count):
        tokens = model(tokens, cache=cache)[:, -1:].argmax(-1)
        result.append(int(tokens))
    return result


def greedy_peer(peer: Any, tokens: Tensor, count: int) -> list[int]:
    result = peer.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=count,
        min_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    return result[0, tokens.shape[1] :].tolist()


def test_windows_without_layer_types():
    config = config_from_hf(
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8,
         "num_hidden_layers": 4, "max_window_layers": 3}
    )  # fmt: skip
    assert (config.window, config.global_layers) == (7, (0, 1, 2))
    llama = {"model_type": "llama", "use_sliding_window": True, "sliding_window": 8}
    assert config_from_hf(llama).window is None  # which transformers does not read either


@pytest.mark.parametrize("kind", ["gemma", "gemma2", "gemma3_text"])
def test_gemma_has_a_default_activation(kind: str):
    config = config_from_hf({"model_type": kind, "hidden_act": None, "hidden_activation": None})
    assert config.activation == "geglu_tanh"


def test_the_old_spelling_of_rotary_scaling_is_read():
    old = config_from_hf(
        {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}}
    )
    new = config_from_hf(
        {
            "model_type": "llama",
            "rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0},
        }
    )
    assert old == new


@pytest.mark.parametrize(
    ("hf", "message"),
    [
        ({"model_type": "bloom"}, "model_type must be one of .* found 'bloom'"),
        ({}, "found None"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "relative_key"),
        ({"model_type": "bert", "hidden_act": "mish"}, "hidden_act must be one of .* 'mish'"),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, "must be False"),
        ({"model_type": "llama", "mlp_bias": True}, "mlp_bias must be False"),
        ({"model_type": "llama", "rope_scaling": {"type": "odd"}}, "rope_type must be .* 'odd'"),
        ({"model_type": "llama", "rope_scaling": {"type": "linear"}}, "needs 'factor'"),
        ({"model_type": "llama", "num_key_value_heads": 5}, "kv_heads must divide heads"),
        ({"model_type": "llama", "hidden_act": "relu"}, "hidden_act must be one of .* 'relu'"),
        (
            {"model_type": "gemma3_text", "use_bidirectional_attention": True},
            "use_bidirectional_attention must be False",
        ),
        (
            {
                "model_type": "gemma3_text",
                "rope_parameters": {"rope_type": "yarn", "full_attention": {"rope_theta": 1e6}},
            },
            "rope_parameters must be .* found both",
        ),
        ({"model_type": "bert", "hidden_size": "768"}, "hidden_size must be a whole number"),
        ({"model_type": "bert", "hidden_act": ["gelu"]}, "hidden_act must be a text"),
        ({"model_type": "bert", "hidden_dropout_prob": "0.1"}, "hidden_dropout_prob must be a num"),
        ({"model_type": "gpt2", "n_embd": "a"}, "n_embd must be a whole number, found 'a'"),
        (
            {"model_type": "llama", "rope_parameters": [1]},
            r"rope_parameters must be a table.*\[1\]",
        ),
        ({"model_type": "llama", "rope_theta": "x"}, "rope_theta must be a number, found 'x'"),
        ({"model_type": "llama", "rms_norm_eps": "x"}, "rms_norm_eps must be a number, found 'x'"),
        ({"model_type": "llama", "attention_dropout": "x"}, "attention_dropout must be a number"),
        ({"model_type": "llama", "tie_word_embeddings": "no"}, "embeddings must be true or false"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "layer_types": "full"},
            "layer_types must be a list",
        ),
        (
            {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": "2"}},
            "factor must be a number, found '2'",
        ),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_unsupported_configs_raise(hf: dict[str, Any], message: str):
    with pytest.raises(LimelightError, match=message):
        config_from_hf(hf)


def test_a_recipe_for_an_unknown_tensor_raises():
    family = family_of({"model_type": "bert"})
    with pytest.raises(OptionError, match=r"BERT family has no tensor for 'stack\.norm\.weight'"):
        family.recipe("stack.norm.weight")
    assert family.plain("bert.embeddings.LayerNorm.gamma") == "embeddings.LayerNorm.weight"
