"""Folders of every family that `load` reads give what transformers gives from the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import limelight as ll

BERT = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA = {**BERT, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2}  # fmt: skip
GEMMA = {**LLAMA, "sliding_window": 5, "query_pre_attn_scalar": 20}
T5 = {
    "vocab_size": 97, "d_model": 32, "d_kv": 10, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "num_decoder_layers": 3, "decoder_start_token_id": 0,
}  # fmt: skip


def saved(model_class: str, folder: Path, **values: Any) -> Any:
    """A small transformers model with random weights, norms and biases, saved in a folder."""
    model = getattr(transformers, model_class)
    torch.manual_seed(0)
    peer = model(model.config_class(**values))
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(std=0.2 if parameter.ndim == 2 else 0.5)
    peer.save_pretrained(folder)
    return peer.eval()


def tokens(n: int = 23) -> Tensor:
    return torch.randint(3, 97, (2, n), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("model_class", "values"),
    [
        ("RobertaModel", {**BERT, "type_vocab_size": 1, "pad_token_id": 1}),
        ("RobertaForMaskedLM", {**BERT, "type_vocab_size": 2, "pad_token_id": 1}),
        ("XLMRobertaModel", {**BERT, "pad_token_id": 1}),
        ("ElectraModel", {**BERT, "embedding_size": 20}),
        ("ElectraForPreTraining", {**BERT, "embedding_size": 32}),
        ("DistilBertModel", {"vocab_size": 97, "dim": 32, "n_layers": 3, "n_heads": 4,
                             "hidden_dim": 48, "max_position_embeddings": 64}),
    ],
)  # fmt: skip
@torch.no_grad()
def test_encoders_equal_transformers(
    tmp_path: Path, model_class: str, values: dict[str, Any]
) -> None:
    peer = saved(model_class, tmp_path, **values)
    model = ll.load(tmp_path)
    assert isinstance(model, ll.Encoder)
    body = getattr(peer, peer.base_model_prefix, peer)
    expected = body(tokens()).last_hidden_state
    assert (model(tokens()) - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("model_class", "values"),
    [
        ("Qwen3ForCausalLM", LLAMA),
        ("GemmaForCausalLM", LLAMA),
        ("GemmaForCausalLM", {**LLAMA, "hidden_act": "gelu"}),
        ("Gemma3ForCausalLM", {**GEMMA, "hidden_activation": "gelu",
                               "attn_logit_softcapping": 2.0}),
        ("Gemma2ForCausalLM", GEMMA),
        ("Gemma3ForCausalLM", {**GEMMA, "layer_types": ["sliding_attention", "full_attention",
                                                        "sliding_attention"]}),
    ],
)  # fmt: skip
@torch.no_grad()
def test_decoders_equal_transformers(
    tmp_path: Path, model_class: str, values: dict[str, Any]
) -> None:
    peer = saved(model_class, tmp_path, **values)
    model = ll.load(tmp_path)
    assert isinstance(model, ll.Decoder)
    # Softcap needs transformers' eager form.
    peer.config._attn_implementation = "eager"
    expected = peer(tokens()).logits
    assert (model(tokens()) - expected).abs().max() < 1e-4 * expected.abs().max()
    # The same in pieces with a cache, and with packed prompts of different lengths.
    cache = model.new_cache()
    pieces = [model(part, cache=cache) for part in tokens().split([9, 1, 1, 12], dim=1)]
    assert (torch.cat(pieces, dim=1) - expected).abs().max() < 1e-4 * expected.abs().max()
    cache = model.new_cache()
    packed = torch.cat((tokens()[0, :11], tokens()[1, :7]))
    model.hidden(packed, lengths=[11, 7], cache=cache)
    for t in range(4):
        step = model(torch.stack((tokens()[0, 11 + t], tokens()[1, 7 + t]))[:, None], cache=cache)
        assert (step[0, 0] - expected[0, 11 + t]).abs().max() < 1e-4 * expected.abs().max()
        assert (step[1, 0] - expected[1, 7 + t]).abs().max() < 1e-4 * expected.abs().max()
    ll.save(model, tmp_path / "own")
    again = ll.load(tmp_path / "own")
    assert again.config == model.config
    assert torch.equal(again(tokens()), model(tokens()))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ],
    ids=["tied", "gated"],
)
@torch.no_grad()
def test_t5_equals_transformers(tmp_path: Path, values: dict[str, Any]) -> None:
    peer = saved("T5ForConditionalGeneration", tmp_path, **T5, **values)
    model = ll.load(tmp_path)
    assert isinstance(model, ll.Transformer)
    source, target = tokens(), tokens(9)
    mask = torch.ones_like(source)
    mask[1, 15:] = 0
    expected = peer(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    logits = model(source, target, source_lengths=[23, 15])
    assert (logits - expected).abs().max() < 1e-4 * expected.abs().max()


@torch.no_grad()
def test_interleaved_pairs_are_the_same_rotation_in_another_order(tmp_path: Path) -> None:
    """Meta's files keep the two channels of a pair side by side: a permutation of the rows."""
    saved("LlamaForCausalLM", tmp_path, **LLAMA)
    halves = ll.load(tmp_path)
    interleaved = ll.Decoder(halves.config.changed(rotary_pairs="interleaved"))
    state = halves.state_dict()
    for name, weight in state.items():
        if name.endswith("attention.inputs.weight"):
            heads, values = weight.split((6 * 16, 2 * 16))
            pairs = heads.view(6, 2, 8, -1).transpose(1, 2).reshape(heads.shape)
            state[name] = torch.cat((pairs, values))
    interleaved.load_state_dict(state)
    assert torch.allclose(interleaved(tokens()), halves(tokens()), atol=1e-4)
    assert not torch.allclose(
        ll.Decoder(halves.config).eval()(tokens()), halves(tokens()), atol=1e-2
    )
