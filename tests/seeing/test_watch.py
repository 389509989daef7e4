"""Watching models that are already loaded."""

from __future__ import annotations

import pytest
import torch
from hf_models import BERT, DECODERS, LONGFORMER, T5
from torch import Tensor

import limelight as ll
from limelight.seeing.huggingface import watchers
from limelight.shapes import OptionError, UnavailableError

IDS = torch.randint(3, 99, (2, 11), generator=torch.Generator().manual_seed(4))
LENS = ll.Lens(top=3, entropy=True, distance=True, columns=(0,), band=2, received=True, map=(3, 3))
GREEDY = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}


def check_statistics(seen: ll.Seen, weights: Tensor) -> None:
    """What was noted equals what eager's weights give."""

    def close(found: Tensor, expected: Tensor, scale: float = 1.0) -> None:
        torch.testing.assert_close(found, expected, atol=1e-5 * scale, rtol=1e-4)

    queries, keys = weights.shape[2:]
    close(seen.dense(), weights)
    close(seen.top.weights, weights.topk(3).values)
    real = seen.top.indices.clamp_min(0)
    close(torch.where(seen.top.indices < 0, 0.0, weights.gather(-1, real)), seen.top.weights)
    close(seen.received, weights.sum(2))
    logs = torch.where(weights > 0, weights.log(), 0.0)
    close(seen.entropy, -(weights * logs).sum(-1))
    away = (torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)).abs()
    close(seen.distance, (weights * away).sum(-1), scale=keys)
    close(seen.band, (weights * (away <= 2)).sum(-1))


@pytest.mark.parametrize(
    ("name", "cache"),
    [("gpt2", "dynamic"), ("llama", "dynamic"), ("llama", "static"), ("gpt_oss", "dynamic"),
     ("gemma3", "dynamic"), ("gemma3", "static")],
)  # fmt: skip
def test_prompt_and_generated_tokens_are_one_text(name, cache):
    model = DECODERS[name]()
    options = {**GREEDY, "max_new_tokens": 5}
    if cache == "static":
        options["cache_implementation"] = "static"
    before = model.config._attn_implementation
    lens = ll.Lens(top=3, entropy=True, distance=True, band=2, received=True)
    with ll.watch(model, lens) as watched:
        tokens = model.generate(IDS, **options)
    assert model.config._attn_implementation == before
    assert watched.stacks == ("self",)
    assert watched.passes() == 1
    assert [seen.extent.i for seen in watched.calls(0)] == [11, 1, 1, 1, 1]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        whole = model(tokens[:, :-1], output_attentions=True, use_cache=False)
    for layer in range(2):
        check_statistics(watched.seen(layer), whole.attentions[layer])
    recording = watched.recording(row=1)
    assert [token.text for token in recording.tokens] == [
        str(one) for one in tokens[1, :-1].tolist()
    ]
    torch.testing.assert_close(
        recording.weights(1, 2), whole.attentions[1][1, 2], atol=1e-5, rtol=1e-4
    )


def test_keys_of_a_growing_cache_are_held_once():
    model = DECODERS["llama"]()
    with ll.watch(model, ll.Lens()) as watched:
        model.generate(IDS, **GREEDY, max_new_tokens=6)
    keys = [seen.source.problem.key for seen in watched.calls(1)]
    assert len({key.untyped_storage().data_ptr() for key in keys}) == 1


def test_each_forward_call_is_a_pass():
    model = BERT()
    with torch.no_grad(), ll.watch(model, LENS) as watched:
        first = model(IDS)
        model(IDS[:, :5])
    assert watched.passes() == 2
    assert watched.seen(0, which=0).extent.j == 11
    assert watched.seen(0).extent.j == 5
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model(IDS, output_attentions=True)
    torch.testing.assert_close(first[0], eager[0], atol=1e-4, rtol=1e-4)
    for layer, weights in enumerate(eager.attentions):
        check_statistics(watched.seen(layer, which=0), weights)
        assert watched.seen(layer, which=0).map.mean.shape == (2, 4, 3, 3)


def test_encoder_decoder_attends_in_three_ways():
    model = T5()
    with ll.watch(model, ll.Lens(top=3, received=True)) as watched:
        tokens = model.generate(IDS, max_new_tokens=4, do_sample=False)
        model.generate(IDS, max_new_tokens=4, do_sample=False)
    assert watched.stacks == ("encoder", "decoder", "cross")
    assert [watched.passes(stack) for stack in watched.stacks] == [2, 2, 2]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model(
            IDS, decoder_input_ids=tokens[:, :-1], output_attentions=True, use_cache=False
        )
    for stack in watched.stacks:
        weights = getattr(eager, f"{stack}_attentions")
        for layer in range(2):
            torch.testing.assert_close(
                watched.seen(layer, stack).dense(), weights[layer], atol=1e-5, rtol=1e-4
            )
    recording = watched.recording(stack="cross", row=1)
    assert len(recording.tokens) == 11
    assert len(recording.queries) == tokens.shape[1] - 1
    with pytest.raises(OptionError, match="stack must be one of 'encoder', 'decoder', 'cross'"):
        watched.seen(0)


def test_some_layers_and_heads():
    model = DECODERS["llama"]()
    with torch.no_grad(), ll.watch(model, ll.Lens(top=2), layers=[1], heads=[3, 0]) as watched:
        model(IDS)
    recording = watched.recording()
    assert recording.layer_numbers == (1,)
    assert recording.head_numbers == (3, 0)
    model.set_attn_implementation("eager")
    weights = model(IDS, output_attentions=True).attentions[1].detach()
    torch.testing.assert_close(recording.weights(1, 3), weights[0, 3], atol=1e-5, rtol=1e-4)
    with pytest.raises(OptionError, match=r"layer must be one of \[1\], found 0"):
        watched.seen(0)


def test_a_model_is_put_back_after_an_exception():
    model = DECODERS["llama"]()
    model.set_attn_implementation("eager")
    hooks = sum(len(module._forward_pre_hooks) for module in model.modules())
    with pytest.raises(IndexError), ll.watch(model):
        model(IDS + 1000)
    assert model.config._attn_implementation == "eager"
    assert model.model.config._attn_implementation == "eager"
    assert not any(module in watchers for module in model.modules())
    assert sum(len(module._forward_pre_hooks) for module in model.modules()) == hooks


def test_other_threads_are_watched_too():
    """`generate` often runs in a thread, with a streamer in this one."""
    from threading import Thread

    model = DECODERS["llama"]()
    with ll.watch(model, ll.Lens()) as watched:
        thread = Thread(target=model.generate, args=(IDS,), kwargs={**GREEDY, "max_new_tokens": 3})
        thread.start()
        thread.join()
    assert len(watched.calls(0)) == 3


def test_beams_are_recorded_call_by_call():
    """Beams change places between calls, so their calls do not join into one text."""
    model = DECODERS["llama"]()
    with ll.watch(model, ll.Lens()) as watched:
        model.generate(IDS, **GREEDY, max_new_tokens=6, num_beams=3)
    calls = sum(len(watched.calls(0, which=which)) for which in range(watched.passes()))
    assert calls == 6
    for which in range(watched.passes()):
        rows = watched.seen(0, which=which).dense().sum(-1)
        torch.testing.assert_close(rows, torch.ones_like(rows))


@pytest.mark.usefixtures("untyped")
def test_what_cannot_be_watched_is_said_in_words():
    with (
        pytest.raises(
            UnavailableError, match=r"LongformerModel computes its attention by itself.*eager"
        ),
        ll.watch(LONGFORMER()),
    ):
        pass
    with (
        pytest.raises(OptionError, match="model must be a Hugging Face model, found Linear"),
        ll.watch(torch.nn.Linear(2, 2)),
    ):
        pass
    model = DECODERS["llama"]()
    with ll.watch(model) as watched:
        with pytest.raises(OptionError, match="being watched already"), ll.watch(model):
            pass
        with pytest.raises(OptionError, match="nothing was recorded"):
            watched.seen(0)
        # The refused second watch has not disturbed the first.
        model(IDS)
    assert watched.seen(0).extent.j == 11
    for options, words in (
        ({"layers": [2]}, "layers names 2, expected numbers from 0 to 1"),
        ({"heads": [4]}, "heads names 4, expected numbers from 0 to 3"),
        ({"heads": []}, "heads must be one or more different numbers"),
    ):
        with pytest.raises(OptionError, match=words), ll.watch(model, **options):
            pass
    assert model.config._attn_implementation == "sdpa"
