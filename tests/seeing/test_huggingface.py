"""Hugging Face models on limelight's attention give the results of eager attention."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hf_models import BERT, DECODERS, LONGT5, OFF_THE_INTERFACE, T5, VIT, WHISPER
from torch import Tensor

import limelight as ll
import limelight.huggingface
from limelight.errors import UnavailableError
from limelight.ops.lens.seen import Seen
from limelight.ops.masks.band import Band
from limelight.ops.masks.combine import And
from limelight.ops.masks.documents import Documents
from limelight.ops.masks.padding import Padding
from limelight.seeing.watching.hf_masks import LazyMask, lazy_mask

assert limelight.huggingface

IDS = torch.randint(3, 99, (2, 12), generator=torch.Generator().manual_seed(4))


def padding_mask(side: str) -> Tensor:
    mask = torch.ones(2, 12, dtype=torch.long)
    if side == "left":
        mask[1, :4] = 0
    elif side == "right":
        mask[1, 8:] = 0
    return mask


def both(model, **inputs):
    """The outputs on eager attention and on limelight's."""
    outputs = []
    for implementation in ("eager", "limelight"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            outputs.append(model(**inputs, output_attentions=True))
    return outputs


def check_weights(ours, theirs, rows: Tensor | None = None) -> None:
    """Check that `attentions` holds Seens whose dense form is eager's weights."""
    assert len(ours) == len(theirs) > 0
    for seen, weights in zip(ours, theirs, strict=True):
        assert isinstance(seen, Seen)
        assert seen.shape == weights.shape
        dense = seen.dense()
        if rows is not None:
            # The query of padding attends to nothing here, and to everything in eager attention.
            dense, weights = (table.transpose(1, 2)[rows.bool()] for table in (dense, weights))
        torch.testing.assert_close(dense, weights, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("name", ["bert", *DECODERS])
def test_outputs_and_weights_equal_eager(name, side):
    model = (BERT if name == "bert" else DECODERS[name])()
    mask = padding_mask(side)
    eager, ours = both(model, input_ids=IDS, attention_mask=mask)
    kept = mask.bool()
    torch.testing.assert_close(ours[0][kept], eager[0][kept], atol=1e-4, rtol=1e-4)
    check_weights(ours.attentions, eager.attentions, mask)


@pytest.mark.parametrize(
    ("name", "cache"),
    [(name, "dynamic") for name in DECODERS]
    + [(name, "static") for name in ("llama", "gemma3", "gpt_oss")],
)
def test_generate_gives_the_same_tokens(name, cache):
    model = DECODERS[name]()
    options = {
        "attention_mask": padding_mask("left"), "max_new_tokens": 6, "do_sample": False,
        "pad_token_id": 0, "eos_token_id": None,
    }  # fmt: skip
    if cache == "static":
        options["cache_implementation"] = "static"
    generated = []
    for implementation in ("eager", "limelight"):
        model.set_attn_implementation(implementation)
        generated.append(model.generate(IDS, **options))
    assert torch.equal(*generated)


def test_t5_equals_eager_with_position_bias_and_cross_attention():
    model = T5()
    eager, ours = both(
        model, input_ids=IDS, attention_mask=padding_mask("right"), decoder_input_ids=IDS[:, :5]
    )
    torch.testing.assert_close(ours.logits, eager.logits, atol=1e-4, rtol=1e-4)
    check_weights(ours.encoder_attentions, eager.encoder_attentions)
    check_weights(ours.decoder_attentions, eager.decoder_attentions)
    check_weights(ours.cross_attentions, eager.cross_attentions)


def test_vit_equals_eager():
    eager, ours = both(VIT(), pixel_values=torch.randn(2, 3, 12, 12))
    torch.testing.assert_close(ours[0], eager[0], atol=1e-4, rtol=1e-4)
    check_weights(ours.attentions, eager.attentions)


def test_whisper_equals_eager():
    eager, ours = both(
        WHISPER(), input_features=torch.randn(2, 8, 40), decoder_input_ids=IDS[:, :6]
    )
    torch.testing.assert_close(ours.logits, eager.logits, atol=1e-4, rtol=1e-4)
    check_weights(ours.encoder_attentions, eager.encoder_attentions)
    check_weights(ours.decoder_attentions, eager.decoder_attentions)
    check_weights(ours.cross_attentions, eager.cross_attentions)


def test_training_has_eager_gradients():
    model = DECODERS["gpt_oss"]()
    gradients = []
    for implementation in ("eager", "limelight"):
        model.set_attn_implementation(implementation)
        loss = model(input_ids=IDS, labels=IDS).loss
        gradients.append(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))
    for eager, ours in zip(*gradients, strict=True):
        if eager is not None or ours is not None:
            torch.testing.assert_close(ours, eager, atol=1e-4, rtol=1e-3)


def test_attentions_convert_to_tensors_and_arrays():
    eager, ours = both(BERT(), input_ids=IDS)
    stacked = torch.stack(ours.attentions)
    torch.testing.assert_close(stacked, torch.stack(eager.attentions), atol=1e-5, rtol=1e-4)
    seen = ours.attentions[0]
    assert seen.squeeze(0).shape == (2, 4, 12, 12)
    assert torch.equal(seen[0].mean(dim=0), seen.dense()[0].mean(dim=0))
    np.testing.assert_array_equal(np.asarray(seen), seen.dense().numpy())
    assert seen.detach().cpu().numpy().shape == (2, 4, 12, 12)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", OFF_THE_INTERFACE)
def test_a_model_that_computes_with_its_mask_raises(name, padded):
    model = OFF_THE_INTERFACE[name]()
    inputs = {"attention_mask": padding_mask("left")} if padded else {}
    model.config._attn_implementation = "limelight"
    with (
        torch.no_grad(),
        pytest.raises(UnavailableError, match=r"computes with its attention mask itself.*eager"),
    ):
        model(IDS, **inputs)


@pytest.mark.parametrize("name", ["bloom", "longformer"])
def test_requesting_limelight_for_a_model_off_the_interface_warns(name):
    message = r"(Bloom|Longformer)\w+ computes its attention by itself \((Bloom|Longformer)\w*Atten"
    model = OFF_THE_INTERFACE[name]()
    config = type(model.config).from_dict(model.config.to_dict(), attn_implementation="limelight")
    with pytest.warns(RuntimeWarning, match=message):
        type(model)(config)


def test_requesting_limelight_for_a_model_partly_off_the_interface_warns():
    model = LONGT5()
    with pytest.warns(
        RuntimeWarning, match=r"computes some of its attention by itself \(LongT5Loc"
    ):
        model.set_attn_implementation("limelight")


def test_any_operation_on_a_lazy_mask_raises():
    mask = lazy_mask(batch_size=2, q_length=12, kv_length=12)
    scores = torch.randn(2, 4, 12, 12)
    for operation in (
        lambda: scores + mask,
        lambda: mask + scores,
        lambda: scores.masked_fill(mask, 0.0),
        lambda: torch.where(mask, scores, 0.0),
        lambda: 1.0 - mask,
        lambda: ~mask,
        lambda: mask != 0,
        lambda: mask[:, 0],
        lambda: mask.to(torch.bool),
        lambda: mask.to(dtype=torch.float32),
        lambda: mask.float(),
        lambda: mask.T,
        lambda: np.asarray(mask),
        lambda: scores.numpy() + mask,
    ):
        with pytest.raises(UnavailableError, match="computes with its attention mask itself"):
            operation()
    assert mask.to("meta").device.type == "meta"


COMPILED = """
import torch
from hf_models import DECODERS
import limelight.huggingface

ids = torch.arange(24).view(2, 12) + 3
mask = torch.ones_like(ids)
mask[1, :4] = 0
for name, masks, options in (
    ("llama", (None, mask), {}), ("gpt_oss", (mask,), {"output_attentions": True})
):
    model = DECODERS[name]()
    model.set_attn_implementation("limelight")
    # To collect attentions, transformers itself breaks the graph.
    compiled = torch.compile(model, backend="aot_eager", fullgraph=not options)
    for padding in masks:
        torch.compiler.reset()
        with torch.no_grad():
            outputs = compiled(ids, attention_mask=padding, **options)
        model.set_attn_implementation("eager")
        with torch.no_grad():
            expected = model(ids, attention_mask=padding, **options)
        model.set_attn_implementation("limelight")
        kept = torch.ones_like(mask).bool() if padding is None else mask.bool()
        assert torch.allclose(outputs[0][kept], expected[0][kept], atol=1e-4)
        for ours, theirs in zip(outputs.attentions or (), expected.attentions or (), strict=True):
            ours, theirs = (table.transpose(1, 2)[kept] for table in (ours, theirs))
            assert torch.allclose(ours, theirs, atol=1e-5)
print("passed")
"""


def test_compiled_models_take_padding_and_return_weights():
    """In a process of its own: torch.compile cannot trace the type checks of the tests."""
    ran = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    assert ran.stdout.strip() == "passed", ran.stderr


def test_masks_of_transformers_become_rules():
    from transformers import masking_utils as hf

    sizes = {"batch_size": 2, "q_length": 12, "kv_length": 12}
    mask = lazy_mask(**sizes, mask_function=hf.sliding_window_causal_mask_function(5)).mask
    assert mask == Band(4, 0, None)
    mask = lazy_mask(**sizes, attention_mask=padding_mask("left").bool()).mask
    assert isinstance(mask, And)
    assert isinstance(mask.masks[1], Padding)
    assert mask.masks[1].side == "left"
    assert lazy_mask(**sizes, mask_function=hf.bidirectional_mask_function).mask is None
    packed = hf.packed_sequence_mask_function(torch.tensor([[0] * 5 + [1] * 7]))
    function = hf.and_masks(hf.causal_mask_function, packed)
    mask = lazy_mask(batch_size=1, q_length=12, kv_length=12, mask_function=function).mask
    assert isinstance(mask, And)
    assert isinstance(mask.masks[1], Documents)
    assert mask.masks[1].lengths == mask.masks[1].key_lengths == (5, 7)


@pytest.mark.parametrize("side", ["none", "left", "right", "holes"])
@pytest.mark.parametrize(
    ("first_query", "keys", "first_key"), [(0, 12, 0), (4, 16, 0), (7, 9, 10), (3, 40, 0)]
)
@pytest.mark.parametrize(
    "kind", ["causal", "window", "both ways", "window both ways", "chunks", "own", "or"]
)
def test_a_lazy_mask_equals_the_mask_that_sdpa_gets(kind, first_query, keys, first_key, side):
    from transformers import masking_utils as hf

    def own(batch, head, query, key):
        return (query + key) % 3 != 0

    function = {
        "causal": hf.causal_mask_function,
        "window": hf.sliding_window_causal_mask_function(5),
        "both ways": hf.bidirectional_mask_function,
        "window both ways": hf.sliding_window_bidirectional_mask_function(3),
        "chunks": hf.chunked_causal_mask_function(4, torch.tensor([0, 2])),
        "own": own,
        "or": hf.or_masks(hf.causal_mask_function, hf.sliding_window_bidirectional_overlay(2)),
    }[kind]
    first_query += first_key
    padding = None
    if side != "none":
        padding = torch.ones(2, first_key + keys, dtype=torch.bool)
        if side == "holes":
            padding[:, ::3] = False
        else:
            padding[1, slice(0, first_key + 3) if side == "left" else slice(-2, None)] = False
    options = {
        "batch_size": 2, "q_length": 6, "kv_length": keys, "q_offset": first_query,
        "kv_offset": first_key, "mask_function": function, "attention_mask": padding,
    }  # fmt: skip
    expected = hf.sdpa_mask(**options, allow_is_causal_skip=False).expand(2, 1, 6, keys)
    lazy = lazy_mask(**options)
    assert isinstance(lazy, LazyMask)
    assert torch.equal(lazy.dense(), expected)
    assert lazy.shape == expected.shape


def test_paged_caches_are_refused():
    from limelight.seeing.watching.huggingface import attention

    x = torch.randn(1, 2, 3, 4)
    with pytest.raises(UnavailableError, match="does not serve paged caches"):
        attention(torch.nn.Identity(), x, x, x, None, cache=object())


def test_without_a_mask_a_causal_module_is_causal():
    from limelight.seeing.watching.huggingface import attention

    module = torch.nn.Identity()
    x = torch.randn(1, 2, 5, 4)
    module.is_causal = True
    out, _ = attention(module, x, x, x, None)
    torch.testing.assert_close(out.transpose(1, 2), ll.attend(x, x, x, mask=ll.causal()))
    out, _ = attention(module, x, x, x, None, is_causal=False)
    torch.testing.assert_close(out.transpose(1, 2), ll.attend(x, x, x))
    # A mask that is a tensor, of bools or to add, is used as it is.
    keep = torch.rand(1, 1, 5, 5) > 0.3
    added = torch.where(keep, 0.0, torch.finfo(torch.float32).min)
    for mask in (keep, added):
        out, _ = attention(module, x, x, x, mask)
        torch.testing.assert_close(out.transpose(1, 2), ll.attend(x, x, x, mask=keep))
