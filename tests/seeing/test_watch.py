"""`watch` on Hugging Face models: passes, stacks, layers, what is unseen."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hf_models import (
    BERT,
    DECODERS,
    LONGT5,
    OFF_THE_INTERFACE,
    T5,
)
from watch_checks import GREEDY, IDS, LENS, check_statistics

import limelight as ll
from limelight import _kernels
from limelight.errors import OptionError, UnavailableError


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
        str(token) for token in tokens[1, :-1].tolist()
    ]
    torch.testing.assert_close(
        recording.weights(1, 2), whole.attentions[1][1, 2], atol=1e-5, rtol=1e-4
    )


def test_keys_of_a_growing_cache_are_stored_once():
    model = DECODERS["llama"]()
    with ll.watch(model, ll.Lens()) as watched:
        model.generate(IDS, **GREEDY, max_new_tokens=6)
    keys = [seen.source.problem.key for seen in watched.calls(1)]
    assert len({key.untyped_storage().data_ptr() for key in keys}) == 1


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_a_watched_call_is_computed_once(name, monkeypatch):
    """The output and what the lens records come from one sweep of the kernel."""
    sweeps: list[str] = []
    for kind in ("forward", "lens_forward"):
        kernel = getattr(_kernels, kind)

        def counted(*arguments, kind=kind, kernel=kernel):
            sweeps.append(kind)
            return kernel(*arguments)

        monkeypatch.setattr(_kernels, kind, counted)
    model = DECODERS[name]()
    with torch.no_grad(), ll.watch(model, LENS):
        model(IDS)
    assert sweeps == ["lens_forward"] * model.config.num_hidden_layers


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


def test_an_encoder_decoder_has_three_stacks():
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


def test_queries_and_keys_of_a_long_text_are_offloaded(monkeypatch):
    from limelight.seeing.recording.offload import offload
    from limelight.seeing.watching import watched as watching

    model, ids = BERT(), torch.randint(3, 99, (1, 12))
    with torch.no_grad(), ll.watch(model) as watched:
        model(ids)
    expected = watched.recording()
    moved = []

    def offloaded(seen, calls):
        result = offload(seen, calls, limit=0)
        moved.append((seen, result, calls))
        return result

    monkeypatch.setattr(watching, "offload", offloaded)
    with torch.no_grad(), ll.watch(model) as watched:
        model(ids)
    assert len(moved) == 2
    for seen, result, calls in moved:
        assert calls == 2
        query = result.source.problem.query
        assert query.data_ptr() != seen.source.problem.query.data_ptr()
    assert torch.equal(watched.recording().weights(1, 2), expected.weights(1, 2))


def test_watching_some_layers_and_heads_keeps_their_numbers():
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


def test_a_model_is_restored_after_an_exception():
    model = DECODERS["llama"]()
    model.set_attn_implementation("eager")
    hooks = sum(len(module._forward_pre_hooks) for module in model.modules())
    with pytest.raises(IndexError), ll.watch(model):
        model(IDS + 1000)
    assert model.config._attn_implementation == "eager"
    assert model.model.config._attn_implementation == "eager"
    assert sum(len(module._forward_pre_hooks) for module in model.modules()) == hooks


def test_a_thread_is_watched_only_in_the_context_of_the_block():
    """`generate` often runs in a thread, with a streamer in this one."""
    from contextvars import copy_context
    from threading import Thread

    model = DECODERS["llama"]()
    with ll.watch(model, ll.Lens()) as watched:
        for run in (model.generate, partial(copy_context().run, model.generate)):
            options = {**GREEDY, "max_new_tokens": 3}
            thread = Thread(target=run, args=(IDS,), kwargs=options)
            thread.start()
            thread.join()
    assert watched.passes() == 1
    assert watched.seen(layer=0).extent.i == IDS.shape[1] + 2


def test_watch_blocks_nest():
    model = DECODERS["llama"]()
    with ll.watch(model, ll.Lens(top=2)) as outer:
        with ll.watch(model, ll.Lens(entropy=True), layers=[1]) as inner:
            model(IDS)
        model(IDS)
    assert (outer.passes(), inner.passes()) == (2, 1)
    assert torch.equal(outer.seen(1, which=0).lse, inner.seen(1).lse)
    assert outer.seen(1).top is not None
    assert inner.seen(1).entropy is not None


@pytest.mark.usefixtures("untyped")
def test_invalid_arguments_raise_clear_errors():
    with (
        pytest.raises(OptionError, match=r"model must be a .*Module, found"),
        ll.watch("model"),
    ):
        pass
    model = DECODERS["llama"]()
    with ll.watch(model) as watched:
        with pytest.raises(OptionError, match="nothing was recorded"):
            watched.seen(0)
        model(IDS)
    assert watched.seen(0).extent.j == 11
    for options, message in (
        ({"layers": [2]}, "layers names 2, expected numbers from 0 to 1"),
        ({"heads": [4]}, "heads names 4, expected numbers from 0 to 3"),
        ({"heads": []}, "heads must be one or more different numbers"),
    ):
        with pytest.raises(OptionError, match=message), ll.watch(model, **options):
            pass
    assert model.config._attn_implementation == "sdpa"


def test_a_warning_names_the_attention_that_was_not_seen():
    """LongT5's encoder computes by itself; its decoder goes through the interface."""
    model = LONGT5()
    message = r"did not see the attention of encoder.block.0.*LongT5LocalAttention"
    with pytest.warns(RuntimeWarning, match=message), ll.watch(model, ll.Lens()) as watched:
        model.generate(IDS, max_new_tokens=3, do_sample=False)
    assert watched.stacks == ("decoder", "cross")
    assert "LongT5LocalAttention" in watched.recording(stack="cross").made["unseen"]


@pytest.mark.parametrize("name", ["bloom", "mpnet", "mpt", "codegen"])
def test_returned_weights_are_recorded_for_models_off_the_interface(name):
    model = OFF_THE_INTERFACE[name]()
    with torch.no_grad():
        expected = model(IDS)
        with ll.watch(model, LENS) as watched:
            output = model(IDS)
        whole = model(IDS, output_attentions=True).attentions
    assert list(output) == list(expected)  # no attentions: the caller did not request them
    torch.testing.assert_close(output[0], expected[0])
    recording = watched.recording(row=1)
    assert recording.made["weights"].startswith("dense, as the model computed and returned them")
    assert [token.text for token in recording.tokens] == [str(n) for n in IDS[1].tolist()]
    for layer, weights in enumerate(whole):
        check_statistics(watched.seen(layer), weights)


@pytest.mark.parametrize("tokens", [4, 5, 11])
def test_returned_weights_of_another_form_are_refused(tokens):
    """Longformer's belong to places in a window; with 5 tokens they have the shape of weights."""
    model = OFF_THE_INTERFACE["longformer"]()
    message = r"did not see the attention of encoder.layer.0.attention.self and 1 more \(Longformer"
    with pytest.warns(RuntimeWarning, match=message), ll.watch(model, ll.Lens()) as watched:
        model(IDS[:, :tokens])
    with pytest.raises(UnavailableError, match="LongformerModel computes the attention of"):
        watched.recording()
