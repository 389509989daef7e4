"""Watching models that are already loaded."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hf_models import (
    ALBERT,
    BART,
    BERT,
    DECODERS,
    DIFFLLAMA,
    LONGT5,
    OFF_THE_INTERFACE,
    QWEN2_VL_VISION,
    T5,
    WHISPER,
)
from torch import Tensor

import limelight as ll
from limelight.errors import OptionError, UnavailableError

IDS = torch.randint(3, 99, (2, 11), generator=torch.Generator().manual_seed(4))
LENS = ll.Lens(top=3, entropy=True, distance=True, columns=(0,), band=2, received=True, map=(3, 3))
GREEDY = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}


def check_statistics(seen: ll.Seen, weights: Tensor) -> None:
    """What was recorded equals what eager's weights give."""

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


def test_queries_and_keys_of_a_long_text_lie_on_disk(monkeypatch):
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
    for seen, result, calls in moved:
        assert calls == 2
        query = result.source.problem.query
        assert query.data_ptr() != seen.source.problem.query.data_ptr()
    assert torch.equal(watched.recording().weights(1, 2), expected.weights(1, 2))


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


@pytest.mark.parametrize("groups", [1, 2])
def test_layers_that_share_a_module_are_told_apart(groups):
    model = ALBERT[groups]()
    with torch.no_grad(), ll.watch(model, LENS) as watched:
        model(IDS)
        model(IDS[:, :5])
    assert watched.passes() == 2
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model(IDS, output_attentions=True).attentions
    assert watched.recording().layer_numbers == tuple(range(2 * groups)) == tuple(range(len(eager)))
    for layer, weights in enumerate(eager):
        check_statistics(watched.seen(layer, which=0), weights)
    with torch.no_grad(), ll.watch(model, LENS, layers=[1]) as watched:
        model(IDS)
    assert watched.recording().layer_numbers == (1,)
    check_statistics(watched.seen(1), eager[1])


BEAMS = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 6}


@pytest.mark.parametrize(
    ("name", "cache"),
    [("llama", "dynamic"), ("gemma3", "dynamic"), ("gpt2", "dynamic"), ("llama", "static")],
)
def test_beams_are_followed_through_their_calls(name, cache):
    """Beams change rows between calls: each is one text, prompt and tokens together."""
    model = DECODERS[name]()
    options = {**GREEDY, **BEAMS}
    if cache == "static":
        options["cache_implementation"] = "static"
    lens = ll.Lens(top=3, entropy=True, distance=True, band=2, received=True)
    with ll.watch(model, lens) as watched:
        sequences = model.generate(IDS, **options)
    assert watched.passes() == 1
    model.set_attn_implementation("eager")

    def eager(ids: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return model(ids, output_attentions=True, use_cache=False).attentions

    for row, sequence in enumerate(sequences):
        recording = watched.recording(row=row, sequences=sequences)
        assert [token.text for token in recording.tokens] == [
            str(one) for one in sequence[:-1].tolist()
        ]
        for layer, weights in enumerate(eager(sequence[None, :-1])):
            check_statistics(recording.seen(layer), weights)
    rows = [[int(token.text) for token in watched.recording(row=row).tokens] for row in range(6)]
    for layer, weights in enumerate(eager(torch.tensor(rows))):
        check_statistics(watched.seen(layer), weights)
        last = watched.calls(layer)[-1].dense()
        kept = weights[:, :, -1:, -last.shape[3] :]
        torch.testing.assert_close(last, kept, atol=1e-5, rtol=1e-4)


def test_beams_are_followed_without_keeping_keys():
    found = []
    for keep in (True, False):
        model = DECODERS["llama"]()
        with ll.watch(model, ll.Lens(top=3, received=True, keep=keep)) as watched:
            model.generate(IDS, **GREEDY, **BEAMS)
        assert all((call.source is None) != keep for call in watched.calls(1))
        found.append(watched.seen(1))
    assert torch.equal(found[0].top.indices, found[1].top.indices)
    assert torch.equal(found[0].received, found[1].received)


@pytest.mark.parametrize("make", [T5, BART, WHISPER])
def test_beams_of_a_target_are_followed_through_their_calls(make):
    """The source's keys are the same for all beams: the target's own say which went on."""
    model = make()
    source = {"input_ids": IDS}
    if make is WHISPER:
        source = {"input_features": torch.randn(2, 8, 40)}
    with ll.watch(model, ll.Lens(top=3, received=True)) as watched:
        sequences = model.generate(**source, **BEAMS, do_sample=False)
    assert [watched.passes(stack) for stack in watched.stacks] == [1, 1, 1]
    model.set_attn_implementation("eager")
    for row in range(6):
        for stack in ("decoder", "cross"):
            recording = watched.recording(stack=stack, row=row, sequences=sequences)
            ids = torch.tensor([[int(token.text) for token in recording.queries]])
            own = {name: one[row // 3][None] for name, one in source.items()}
            with torch.no_grad():
                eager = model(**own, decoder_input_ids=ids, output_attentions=True, use_cache=False)
            for layer, weights in enumerate(getattr(eager, f"{stack}_attentions")):
                torch.testing.assert_close(
                    recording.seen(layer).dense(), weights, atol=1e-4, rtol=1e-3
                )
            if stack == "cross" and make is not WHISPER:
                names = [token.text for token in recording.tokens]
                assert names == [str(one) for one in IDS[row // 3].tolist()]


def test_a_beam_that_ended_early_is_found_by_its_sequence():
    model = DECODERS["llama"]()
    options = {**GREEDY, **BEAMS, "max_new_tokens": 12}
    free = model.generate(IDS[:1], **options)
    # A token that a beam reaches, so that it ends there and others go on.
    options["eos_token_id"] = eos = int(free[0, 14])
    with ll.watch(model, ll.Lens()) as watched:
        found = model.generate(IDS[:1], **options)
    ended = [row for row, ids in enumerate(found.tolist()) if eos in ids[11:-1]]
    assert ended
    model.set_attn_implementation("eager")
    for row in ended:
        length = found[row, 11:].tolist().index(eos) + 11
        recording = watched.recording(row=row, sequences=found)
        assert len(recording.tokens) == length < watched.seen(0).extent.j
        with torch.no_grad():
            eager = model(found[row][None, :length], output_attentions=True).attentions
        torch.testing.assert_close(recording.seen(1).dense(), eager[1], atol=1e-5, rtol=1e-4)
    for wrong, row, words in (
        (found + 1, 0, "found ids in row 0 that no beam of it read"),
        (found[0], 0, r"sequences must be token ids \(rows, n\), found torch.int64 of shape"),
        (found, 3, "row must be one of 0 to 2, found 3"),
        (None, 3, "row must be one of 0 to 2, found 3"),
    ):
        with pytest.raises(OptionError, match=words):
            watched.recording(row=row, sequences=wrong)


@pytest.mark.usefixtures("untyped")
def test_what_cannot_be_watched_is_said_in_words():
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
    for options, words in (
        ({"layers": [2]}, "layers names 2, expected numbers from 0 to 1"),
        ({"heads": [4]}, "heads names 4, expected numbers from 0 to 3"),
        ({"heads": []}, "heads must be one or more different numbers"),
    ):
        with pytest.raises(OptionError, match=words), ll.watch(model, **options):
            pass
    assert model.config._attn_implementation == "sdpa"


def test_watches_nest():
    model = DECODERS["llama"]()
    with ll.watch(model, ll.Lens(top=2)) as outer:
        with ll.watch(model, ll.Lens(entropy=True), layers=[1]) as inner:
            model(IDS)
        model(IDS)
    assert (outer.passes(), inner.passes()) == (2, 1)
    assert torch.equal(outer.seen(1, which=0).lse, inner.seen(1).lse)
    assert outer.seen(1).top is not None
    assert inner.seen(1).entropy is not None


def test_a_layer_that_attends_twice_is_one_layer():
    """DiffLlama: two calls a layer, which are two occurrences; tokens go on from their own."""
    model = DIFFLLAMA()
    with ll.watch(model, ll.Lens(top=2)) as watched:
        tokens = model.generate(IDS, **GREEDY, max_new_tokens=3)
    assert watched.passes() == 1
    assert watched.recording().layer_numbers == (0, 1)
    for layer in range(2):
        first, second = (watched.seen(layer, occurrence=number) for number in range(2))
        assert first.extent.j == second.extent.j == tokens.shape[1] - 1
        torch.testing.assert_close(first.dense(), second.dense())
    with pytest.raises(OptionError, match=r"occurrence must be one of 0 to 1.*found 2"):
        watched.seen(0, occurrence=2)
    with torch.no_grad(), ll.watch(model, ll.Lens(), layers=[1]) as watched:
        model(IDS)
    assert watched.order == ["model.layers.1.self_attn"] * 2


def test_each_image_of_a_vision_tower_is_an_occurrence():
    model = QWEN2_VL_VISION()
    grid = torch.tensor([[1, 4, 4], [1, 2, 4]])
    patches = torch.randn(24, 3 * 2 * 2)
    with torch.no_grad(), ll.watch(model, ll.Lens()) as watched:
        model(patches, grid_thw=grid)
        model(patches[:16], grid_thw=grid[:1])
    assert watched.recording().layer_numbers == (0, 1)
    assert watched.passes() == 2
    sizes = [watched.seen(1, which=0, occurrence=image).extent.j for image in range(2)]
    assert sizes == [16, 8]
    with pytest.raises(OptionError, match="occurrence must be one of 0 to 0"):
        watched.seen(1, occurrence=1)  # the second call had one image


class Looped(torch.nn.Module):
    """Two blocks, gone through three times."""

    def __init__(self) -> None:
        super().__init__()
        layer = partial(torch.nn.TransformerEncoderLayer, 16, 4, batch_first=True)
        self.blocks = torch.nn.ModuleList([layer(), layer()])

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            for block in self.blocks:
                x = block(x)
        return x


def test_a_looped_stack_has_its_own_layers():
    model = Looped().eval()
    with torch.no_grad(), ll.watch(model, ll.Lens()) as watched:
        model(torch.randn(1, 5, 16))
    assert watched.order == ["blocks.0.self_attn", "blocks.1.self_attn"] * 3
    assert watched.recording().layer_numbers == (0, 1)
    assert watched.seen(1, occurrence=2).extent.i == 5
    assert not torch.equal(watched.seen(1, occurrence=2).dense(), watched.seen(1).dense())


def bert_tokenizer(words: str):
    """A WordPiece tokenizer that knows these words, as BERT's is made."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words.split()]
    made = Tokenizer(models.WordPiece({name: n for n, name in enumerate(names)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]",
    )  # fmt: skip


def test_words_are_told_apart_without_a_piece_that_goes_on():
    """Whether words stand apart is the tokenizer's to say, not a guess from its pieces."""
    model, tokenizer = BERT(), bert_tokenizer("the animal didn ' t cross street ##s")
    inputs = tokenizer("The animal didn't cross the street", return_tensors="pt")
    with torch.no_grad(), ll.watch(model, ll.Lens()) as watched:
        model(**inputs)
    recording = watched.recording(tokenizer)
    assert recording.text == "the animal didn't cross the street"
    words = recording.by_words().tokens
    assert [word.text for word in words] == [
        "[CLS]", "the", "animal", "didn't", "cross", "the", "street", "[SEP]",
    ]  # fmt: skip
    assert recording.strongest().links


def test_rows_of_a_padded_batch_are_without_their_padding():
    model, tokenizer = BERT(), bert_tokenizer("the animal didn ' t cross street ##s")
    texts = ["the animal didn't cross the streets", "the animal"]
    lens = ll.Lens(top=3, entropy=True, distance=True, received=True, band=2)
    for side in ("right", "left"):
        inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side=side)
        with torch.no_grad(), ll.watch(model, lens) as watched:
            model(**inputs)
        recording = watched.recording(tokenizer, row=1)
        assert [token.text for token in recording.tokens] == ["[CLS]", "the", "animal", "[SEP]"]
        model.set_attn_implementation("eager")
        with torch.no_grad():
            whole = model(**inputs, output_attentions=True).attentions
        kept = inputs["attention_mask"][1].bool()
        for layer, weights in enumerate(whole):
            expected = weights[1:, :, kept][..., kept]
            check_statistics(recording.seen(layer), expected)


@pytest.mark.parametrize("keep", [True, False])
def test_padding_is_left_out_of_a_prompt_and_its_generated_tokens(keep):
    model = DECODERS["llama"]()
    real = torch.ones_like(IDS)
    real[1, :4] = 0
    lens = ll.Lens(top=3, entropy=True, distance=True, keep=keep)
    with ll.watch(model, lens) as watched:
        tokens = model.generate(IDS, attention_mask=real, **GREEDY, max_new_tokens=4)
    recording = watched.recording(row=1)
    assert [token.text for token in recording.tokens] == [str(n) for n in tokens[1, 4:-1].tolist()]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        alone = model(tokens[1:, 4:-1], output_attentions=True).attentions
    for layer, weights in enumerate(alone):
        top = recording.seen(layer).top
        torch.testing.assert_close(top.weights, weights.topk(3).values, atol=1e-5, rtol=1e-4)
        if keep:
            torch.testing.assert_close(recording.seen(layer).dense(), weights, atol=1e-5, rtol=1e-4)


def test_attention_that_was_not_seen_is_named():
    """LongT5's encoder computes by itself; its decoder goes through the interface."""
    model = LONGT5()
    words = r"did not see the attention of encoder.block.0.*LongT5LocalAttention"
    with pytest.warns(RuntimeWarning, match=words), ll.watch(model, ll.Lens()) as watched:
        model.generate(IDS, max_new_tokens=3, do_sample=False)
    assert watched.stacks == ("decoder", "cross")
    assert "LongT5LocalAttention" in watched.recording(stack="cross").made["unseen"]


def test_gradient_checkpointing_is_recorded_once():
    model = DECODERS["llama"]().train()
    model.gradient_checkpointing_enable()
    with ll.watch(model, ll.Lens()) as watched:
        model(IDS, labels=IDS, use_cache=False).loss.backward()
    assert watched.passes() == 1
    assert len(watched.order) == 2
    assert model.model.layers[0].self_attn.q_proj.weight.grad is not None


@pytest.mark.parametrize("name", ["bloom", "mpnet", "mpt", "codegen"])
def test_models_that_give_their_weights_back_are_recorded_from_these(name):
    model = OFF_THE_INTERFACE[name]()
    with torch.no_grad():
        expected = model(IDS)
        with ll.watch(model, LENS) as watched:
            output = model(IDS)
        whole = model(IDS, output_attentions=True).attentions
    assert list(output) == list(expected)  # as the caller asked for it
    torch.testing.assert_close(output[0], expected[0])
    recording = watched.recording(row=1)
    assert recording.made["weights"].startswith("dense, as the model computed and returned them")
    assert [token.text for token in recording.tokens] == [str(n) for n in IDS[1].tolist()]
    for layer, weights in enumerate(whole):
        check_statistics(watched.seen(layer), weights)


@pytest.mark.parametrize("tokens", [4, 5, 11])
def test_weights_given_back_in_a_form_of_their_own_are_refused(tokens):
    """Longformer's are by place in the window: with 5 tokens they even look like weights."""
    model = OFF_THE_INTERFACE["longformer"]()
    words = r"did not see the attention of encoder.layer.0.attention.self and 1 more \(Longformer"
    with pytest.warns(RuntimeWarning, match=words), ll.watch(model, ll.Lens()) as watched:
        model(IDS[:, :tokens])
    with pytest.raises(UnavailableError, match="LongformerModel computes the attention of"):
        watched.recording()
