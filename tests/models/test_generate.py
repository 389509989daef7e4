"""Generation: the same tokens as transformers, sampling rules, batches, stops, streams, beams."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import limelight as ll
from limelight.errors import OptionError, UnavailableError
from limelight.models.tokens import Tokens

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived an old fisherman who",
    "def fibonacci(n):",
]


@pytest.fixture(scope="module")
def tiny() -> ll.Decoder:
    torch.manual_seed(3)
    config = ll.Config.llama(vocabulary=30, width=32, layers=2, heads=4, kv_heads=2)
    model = ll.Decoder(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # far from uniform, so that there are no near ties
    return model


def hf_greedy(hf: Any, prompt: str, count: int, **options: Any) -> list[int]:
    inputs = hf.tokenizer(prompt, return_tensors="pt")
    output = hf.generate(**inputs, max_new_tokens=count, do_sample=False, **options)
    return output[0, inputs["input_ids"].shape[1] :].tolist()


def test_smollm2_names_the_capital_of_france(smollm2: ll.Decoder) -> None:
    assert ll.generate(smollm2, PROMPTS[0], max_tokens=4).text.startswith(" Paris")


def test_greedy_equals_transformers_for_64_tokens(smollm2: ll.Decoder, hf_smollm2: Any) -> None:
    for prompt in PROMPTS[:2]:
        answer = ll.generate(smollm2, prompt, max_tokens=64)
        assert answer.ids == hf_greedy(hf_smollm2, prompt, 64)


def test_batch_equals_each_alone(smollm2: ll.Decoder) -> None:
    together = ll.generate(smollm2, PROMPTS, max_tokens=12)
    assert together == [ll.generate(smollm2, prompt, max_tokens=12) for prompt in PROMPTS]


def test_penalty_equals_transformers(smollm2: ll.Decoder, hf_smollm2: Any) -> None:
    how = ll.Sampling(repetition_penalty=1.3)
    answer = ll.generate(smollm2, PROMPTS[1], max_tokens=24, how=how)
    assert answer.ids == hf_greedy(hf_smollm2, PROMPTS[1], 24, repetition_penalty=1.3)


def test_beam_equals_transformers(smollm2: ll.Decoder, hf_smollm2: Any) -> None:
    for prompt, width, penalty in ((PROMPTS[0], 3, 1.0), (PROMPTS[1], 4, 0.6)):
        answer = ll.generate(smollm2, prompt, max_tokens=16, how=ll.Beam(width, penalty))
        expected = hf_greedy(hf_smollm2, prompt, 16, num_beams=width, length_penalty=penalty)
        # transformers fills up with its padding token, which is also its end token
        assert answer.ids == expected[: len(answer.ids)]
        assert set(expected[len(answer.ids) :]) <= {2}


def test_beam_finds_the_best_of_all(tiny: ll.Decoder) -> None:
    """A beam as wide as the vocabulary finds what an exhaustive search finds."""
    prompt = [1, 2, 3]
    with torch.inference_mode():
        first = tiny(torch.tensor([prompt]))[0, -1].log_softmax(-1)
        rows = torch.tensor([[*prompt, token] for token in range(30)])
        second = tiny(rows)[:, -1].log_softmax(-1)
    best = int((first[:, None] + second).argmax())
    answer = ll.generate(tiny, [prompt], max_tokens=2, how=ll.Beam(30))[0]
    assert answer.ids == [best // 30, best % 30]


def test_beam_of_one_is_greedy(tiny: ll.Decoder) -> None:
    prompts = [[1, 2, 3], [4, 5]]
    assert ll.generate(tiny, prompts, max_tokens=8, how=ll.Beam(1)) == ll.generate(
        tiny, prompts, max_tokens=8
    )


@pytest.mark.parametrize(
    "options", [(0.7, None, 1.0), (1.0, 5, 1.0), (1.3, None, 0.7), (0.9, 9, 0.8)]
)
def test_probabilities_equal_transformers(options: tuple[float, int | None, float]) -> None:
    from transformers import (
        LogitsProcessorList,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    temperature, top_k, top_p = options
    rules = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k is not None:
        rules.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        rules.append(TopPLogitsWarper(top_p))
    logits = torch.randn(4, 50) * 3
    expected = rules(torch.zeros(4, 1, dtype=torch.int64), logits.clone()).softmax(-1)
    ours = ll.Sampling(temperature, top_k, top_p).probabilities(logits, [[]] * 4)
    assert torch.allclose(ours, expected, atol=1e-6)


def test_draws_follow_the_probabilities() -> None:
    how = ll.Sampling(temperature=1.0, top_k=3)
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    generator = torch.Generator().manual_seed(0)
    drawn = [how.draw(logits, [[]], [generator])[0] for _ in range(4000)]
    shares = torch.bincount(torch.tensor(drawn), minlength=4) / 4000
    expected = how.probabilities(logits, [[]])[0]
    assert torch.allclose(shares, expected, atol=0.03)
    assert shares[0] == 0


def test_temperature_0_takes_the_likeliest_token() -> None:
    logits = torch.tensor([[0.0, 1.0, 3.0, 2.0], [4.0, -1.0, 0.0, 3.9]])
    probabilities = ll.Sampling(top_k=3, repetition_penalty=2.0).probabilities(logits, [[], [0]])
    assert torch.equal(probabilities, torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]))


def test_samples_depend_on_the_seed_and_the_prompt_alone(tiny: ll.Decoder) -> None:
    how = ll.Sampling(temperature=1.5)
    prompts = [[1, 2], [3, 4, 5], [1, 2], [6]]
    first = ll.generate(tiny, prompts, max_tokens=10, how=how, seed=7)
    assert first == ll.generate(tiny, prompts, max_tokens=10, how=how, seed=7)
    assert first != ll.generate(tiny, prompts, max_tokens=10, how=how, seed=8)
    assert first[0].ids != first[2].ids  # the same prompt twice is two samples
    for index in (0, 1, 3):  # each prompt gives alone what it gives in a batch
        alone = ll.generate(tiny, [prompts[index]], max_tokens=10, how=how, seed=7)
        assert alone == [first[index]]
    reversed_order = ll.generate(tiny, prompts[::-1], max_tokens=10, how=how, seed=7)
    assert reversed_order[0] == first[3]
    assert reversed_order[2] == first[1]
    huge = ll.generate(tiny, prompts, max_tokens=10, how=how, seed=2**70)
    assert huge == ll.generate(tiny, prompts, max_tokens=10, how=how, seed=2**70)


@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 1e-300])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = torch.tensor([[0.0, 1.0, 3.0, 2.0], [4.0, -1.0, 0.0, 3.9]])
    for limits in ({}, {"top_k": 2, "top_p": 0.9}):
        probabilities = ll.Sampling(temperature, **limits).probabilities(logits, [[], []])
        assert torch.equal(
            probabilities, torch.tensor([[0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
        )


def test_rows_end_independently(tiny: ll.Decoder) -> None:
    """Rows that end are dropped; the others continue as if alone."""
    prompts = [[1], [2, 3, 4, 5], [6, 7], [8, 9, 10]]
    free = [answer.ids for answer in ll.generate(tiny, prompts, max_tokens=12)]
    end = free[0][2]
    letters = Tokens.characters("abcdefghijklmnopqrstuvwxyz ,.")
    tiny.tokens = Tokens(letters.tokenizer, end=(end,))
    try:
        answers = ll.generate(tiny, prompts, max_tokens=12)
    finally:
        tiny.tokens = None
    for answer, ids in zip(answers, free, strict=True):
        expected = ids[: ids.index(end) + 1] if end in ids else ids
        assert answer.ids == expected
        assert answer.ended == ("end" if end in ids else "length")
    assert len({len(answer.ids) for answer in answers}) > 1


def test_stop_strings_and_streams(smollm2: ll.Decoder) -> None:
    whole = ll.generate(smollm2, PROMPTS[1], max_tokens=30)
    assert whole.ended == "length"
    pieces = list(ll.stream(smollm2, PROMPTS[1], max_tokens=30))
    assert "".join(pieces) == whole.text
    assert len(pieces) > 20
    # A stop string that begins and ends inside tokens: five characters from the middle.
    stop = whole.text[20:25]
    cut = ll.generate(smollm2, PROMPTS[1], max_tokens=30, stop=["never there", stop])
    assert cut.ended == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert len(cut.ids) < len(whole.ids)
    streamed = ll.stream(smollm2, PROMPTS[1], max_tokens=30, stop=["never there", stop])
    assert "".join(streamed) == cut.text
    # The beginning of a stop string at the very end belongs to the text.
    last = whole.text[-1] + "\N{SNOWMAN}"
    assert ll.generate(smollm2, PROMPTS[1], max_tokens=30, stop=[last]).text == whole.text
    assert "".join(ll.stream(smollm2, PROMPTS[1], max_tokens=30, stop=[last])) == whole.text


def test_stream_can_be_left_early(smollm2: ll.Decoder) -> None:
    stream = ll.stream(smollm2, PROMPTS[0], max_tokens=10**6)
    assert list(itertools.islice(stream, 2)) == [" Paris", "."]
    assert not torch.is_inference_mode_enabled()


def test_learned_positions_limit_the_length() -> None:
    model = ll.Decoder(ll.Config.gpt2(vocabulary=20, width=8, layers=1, heads=2, context=10)).eval()
    answers = ll.generate(model, [[1, 2, 3], [1] * 10], max_tokens=50)
    assert [len(answer.ids) for answer in answers] == [8, 1]
    assert [len(a.ids) for a in ll.generate(model, [[1, 2, 3]], max_tokens=50, how=ll.Beam(2))] == [
        8
    ]
    with pytest.raises(OptionError, match="one of 11 tokens, expected at most 10"):
        ll.generate(model, [[1], [1] * 11])


def test_transformer_writes_targets() -> None:
    """Equal to the argmax of the model, step by step without a cache."""
    torch.manual_seed(5)
    config = ll.Config.transformer2017(vocabulary=30, width=32, layers=2, heads=4)
    model = ll.Transformer(config).eval()
    letters = Tokens.characters("abcdefghijklmnopqrstuvwxyz ,.")
    model.tokens = Tokens(letters.tokenizer, begin=1, end=(2,))
    sources = [[5, 6, 7, 8], [9, 10], [11, 12, 13, 14, 15, 16]]
    answers = ll.generate(model, sources, max_tokens=8)
    beams = ll.generate(model, sources, max_tokens=8, how=ll.Beam(1))
    for source, answer, beam in zip(sources, answers, beams, strict=True):
        target = [1]
        with torch.inference_mode():
            for _ in range(8):
                logits = model(torch.tensor([source]), torch.tensor([target]))
                target.append(int(logits[0, -1].argmax()))
                if target[-1] == 2:
                    break
        assert answer.ids == beam.ids == target[1:]
    model.tokens = None
    with pytest.raises(OptionError, match="begin token"):
        ll.generate(model, sources)


def test_nothing_to_generate(tiny: ll.Decoder) -> None:
    assert ll.generate(tiny, []) == []
    for how in (None, ll.Beam(2)):
        answer = ll.generate(tiny, [[1, 2]], max_tokens=0, how=how)[0]
        assert (answer.text, answer.ids, answer.ended) == ("", [], "length")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": -1}, "max_tokens must be a whole number of at least 0, found -1"),
        ({"stop": "x"}, "stop must be a list of strings"),
        ({"stop": [""]}, "stop must be a list of strings"),
        ({"stop": None}, "stop must be a list of strings .* found None"),
        ({"how": "greedy"}, "how must be a Sampling or a Beam or None, found 'greedy'"),
        ({"seed": "a"}, "seed must be a whole number or None, found 'a'"),
        ({"seed": 1.5}, "seed must be a whole number or None, found 1.5"),
    ],
)
def test_wrong_options_raise(
    smollm2: ll.Decoder, untyped: None, options: dict[str, Any], message: str
) -> None:
    for function in (ll.generate, ll.stream):
        with pytest.raises(OptionError, match=message):
            function(smollm2, PROMPTS[0], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"temperature": float("nan")}, "temperature must be at least 0"),
        ({"temperature": float("inf")}, "temperature must be at least 0 and finite, found inf"),
        ({"top_k": 0}, "top_k must be a whole number of at least 1"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be a positive number"),
        ({"temperature": "a"}, "temperature must be a number, found 'a'"),
        ({"top_p": None}, "top_p must be a number, found None"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_wrong_sampling_raises(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ll.Sampling(**options)


def test_wrong_prompts_and_models_raise(
    tiny: ll.Decoder, minilm: ll.Encoder, untyped: None
) -> None:
    with pytest.raises(UnavailableError, match="without a tokenizer"):
        ll.generate(tiny, "text")
    with pytest.raises(UnavailableError, match="stop strings need a tokenizer"):
        ll.generate(tiny, [[1]], stop=["x"])
    with pytest.raises(OptionError, match="at least one token"):
        ll.generate(tiny, [[]])
    for ids in ([99], [1, 2**70], [-1]):
        message = f"tokens go from {min(ids)} to {max(ids)}, expected 0 to 29"
        with pytest.raises(OptionError, match=message):
            ll.generate(tiny, [ids])
    with pytest.raises(OptionError, match=r"token ids must be whole numbers, found \[1.5\]"):
        ll.generate(tiny, [[1.5]])  # pyright: ignore
    with pytest.raises(OptionError, match="prompts must be a str or a list of prompts, found None"):
        ll.generate(tiny, None)  # pyright: ignore
    with pytest.raises(OptionError, match=r"how must be a Sampling for a stream, found Beam\("):
        ll.stream(tiny, "text", how=ll.Beam(2))  # pyright: ignore
    with pytest.raises(
        OptionError, match="model must be a Decoder or a Transformer, found Encoder"
    ):
        ll.generate(minilm, "text")  # pyright: ignore
    with pytest.raises(OptionError, match="beam width must be"):
        ll.Beam(0)
    with pytest.raises(OptionError, match="beam length_penalty must be a number, found 'a'"):
        ll.Beam(2, "a")  # pyright: ignore


@pytest.mark.parametrize("how", [None, ll.Sampling(temperature=1.0), ll.Beam(2)])
def test_a_model_of_nan_raises(how: ll.Sampling | ll.Beam | None) -> None:
    """An error of ours: argmax would take the first NaN, and a draw fails inside PyTorch."""
    model = ll.Decoder(ll.Config.gpt2(vocabulary=9, width=8, layers=1, heads=2, context=8)).eval()
    torch.nn.init.constant_(model.embedding.tokens.weight, float("nan"))
    with pytest.raises(OptionError, match="model gives logits that are not finite"):
        ll.generate(model, [[1, 2]], max_tokens=2, how=how)


@pytest.mark.parametrize("how", [{"top_p": 1e-320}, {"repetition_penalty": 1e-320}])
def test_numbers_too_small_for_float32_still_draw_a_token(
    tiny: ll.Decoder, how: dict[str, float]
) -> None:
    (answer,) = ll.generate(tiny, [[1, 2, 3]], max_tokens=3, how=ll.Sampling(0.7, **how), seed=1)
    assert len(answer.ids) == 3


def test_beams_are_bounded() -> None:
    with pytest.raises(ll.LimelightError, match="beam width must be a whole number of at most"):
        ll.Beam(1 << 40)
