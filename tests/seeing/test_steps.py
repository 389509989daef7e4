"""Every step of a head: its formula, applied to the steps before it, gives its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from formula_reader import evaluate

import limelight as ll
from limelight.errors import OptionError
from limelight.models.tokens import Tokens

NAMES = [
    "X", "W_Q", "b_Q", "W_K", "b_K", "W_V", "b_V", "W_O", "b_O", "Q", "K", "V", "scores", "scaled",
    "masked", "weights", "row sums", "weighted values", "heads", "concatenation", "output",
]  # fmt: skip


def test_steps_of_the_worked_example_equal_their_formulas():
    """X of "I love apple phones" and the three matrices of its first head."""
    x = torch.tensor(
        [[1.0, 0.5, 0.2, 0.1], [0.9, 1.1, 0.1, 0.0], [0.1, 0.2, 1.0, 0.5], [0.0, 0.1, 0.4, 1.2]]
    )
    w_query = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]])
    w_key = torch.tensor([[1.0, 0], [0, 1], [0, 1], [1, 0]])
    w_value = torch.tensor([[1.0, 0], [0, 1], [1, 1], [0, 1]])
    layer = ll.Attention(4, heads=1, head_size=2, bias="none", output=False)
    with torch.no_grad():
        layer.inputs.weight.copy_(torch.cat([w_query, w_key, w_value], dim=1).T)
    steps = ll.steps(layer, x, words=["I", "love", "apple", "phones"])
    query, key, value = x @ w_query, x @ w_key, x @ w_value
    for name, expected in (
        ("X", x),
        ("W_Q", w_query),
        ("W_V", w_value),
        ("Q", query),
        ("K", key),
        ("V", value),
        ("scores", query @ key.T),
        ("scaled", query @ key.T / 2**0.5),
        ("weights", torch.softmax(query @ key.T / 2**0.5, dim=-1)),
        ("weighted values", torch.softmax(query @ key.T / 2**0.5, dim=-1) @ value),
    ):
        torch.testing.assert_close(steps[name].value, expected)
    torch.testing.assert_close(steps["row sums"].value, torch.ones(4))
    torch.testing.assert_close(steps["Q"].value[0], torch.tensor([1.2, 0.6]))
    assert steps["scores"].shape_text == "i j = 4 x 4"


def test_steps_lead_from_x_to_the_layer_output():
    layer = ll.Attention(12, heads=4, kv_heads=2, bias="all")
    x = torch.randn(5, 12)
    steps = ll.steps(layer, x, head=3, mask=ll.causal())
    assert [step.name for step in steps if step.name != "mask"] == NAMES
    concatenated = steps["concatenation"].value
    output = concatenated @ steps["W_O"].value + layer.output.bias
    torch.testing.assert_close(output.detach(), layer(x[None], mask=ll.causal())[0].detach())
    torch.testing.assert_close(steps["output"].value, output.detach())
    torch.testing.assert_close(concatenated[:, 9:12], steps["weighted values"].value)
    torch.testing.assert_close(steps["heads"].value[3], steps["weighted values"].value)
    bias = layer.inputs.bias.detach()[9:12]
    torch.testing.assert_close(steps["Q"].value, x @ steps["W_Q"].value + bias)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = steps["scaled"].value.masked_fill(later, float("-inf"))
    torch.testing.assert_close(steps["masked"].value, expected)
    assert "causal()" in steps["mask"].formula


def test_the_output_follows_from_the_steps_in_training_too():
    layer = ll.Attention(12, heads=3, dropout=0.5).train()
    steps = ll.steps(layer, torch.randn(6, 12))
    output = steps["concatenation"].value @ steps["W_O"].value + layer.output.bias.detach()
    torch.testing.assert_close(steps["output"].value, output)


def formulas(steps):
    return [steps[name].formula for name in ("Q", "K", "V", "output")]


def test_formulas_name_the_inputs_of_the_layer():
    x = torch.randn(3, 8)
    plain = ll.Attention(8, heads=2, bias="none", output=False)
    assert formulas(ll.steps(plain, x)) == ["X · W_Q", "X · W_K", "X · W_V", "concatenation"]
    inputs = ll.Attention(8, heads=2, bias="inputs")
    rotated = ll.steps(inputs, x, rotation=ll.Rotary(4)(torch.arange(3)))
    swap = "where swap exchanges the halves of each row"
    assert formulas(rotated) == [
        f"Q unrotated ∘ cos + swap(Q unrotated) ∘ sin, {swap}",
        f"K unrotated ∘ cos + swap(K unrotated) ∘ sin, {swap}",
        "X · W_V + b_V",
        "concatenation · W_O",
    ]
    assert rotated["K unrotated"].formula == "X · W_K + b_K"
    cross = ll.steps(ll.Attention(8, heads=2), x, memory=torch.randn(5, 8))
    assert formulas(cross) == [
        "X · W_Q + b_Q",
        "memory · W_K + b_K",
        "memory · W_V + b_V",
        "concatenation · W_O + b_O",
    ]
    slices = ll.steps(ll.Attention(8, heads=2, heads_see="slice", bias="none"), x)
    assert slices["K"].formula == "X of the head · W_K"
    assert slices["X of the head"].formula == "columns 0 to 3 of X"


def test_a_file_keeps_formulas_and_names_the_missing_steps(tmp_path):
    config = ll.Config.llama(layers=1, width=8, heads=2, vocabulary=27, context=32)
    model = ll.Decoder(config)
    model.tokens = Tokens.characters("abcdefghijklmnopqrstuvwxyz")
    rec = ll.look("abc", model)
    assert check_formulas(rec.steps(0, 1)) >= 11
    rec.save(tmp_path / "x.safetensors")
    loaded = ll.Recording.load(tmp_path / "x.safetensors").steps(0, 1)
    assert formulas(loaded) == [
        "X · W_Q, rotated by position",
        "X · W_K, rotated by position",
        "X · W_V",
        "concatenation · W_O",
    ]
    assert "W_Q" not in loaded
    assert "stay with the model and are in no file" in loaded.missing


def test_formulas_without_a_recorded_input_mention_optional_bias_and_positions():
    rec = replace(ll.look("a few words", heads=[0, 1]), flows=())
    steps = rec.steps(layer=0, head=0)
    assert steps["Q"].formula == "X · W_Q, with bias and positions where the layer has them"
    assert steps["heads"].formula == "weights · V of every recorded head"
    assert "The input of the layer was not recorded" in steps.missing


def check_formulas(steps, atol=1e-5):
    """Check every printed formula against the printed numbers; the number of formulas checked."""
    count = 0
    for step in steps:
        if step.formula.startswith("weights · V of every"):
            own = steps["weighted values"].value
            assert any(torch.equal(head, own) for head in step.value)
            continue
        expected = evaluate(steps, step.name)
        if expected is not None:
            torch.testing.assert_close(step.value, expected, atol=atol, rtol=1e-5, msg=step.name)
            count += 1
    return count


@pytest.mark.parametrize(
    "options",
    [
        {"bias": "none"},
        {"bias": "inputs"},
        {"bias": "all"},
        {"bias": "all", "output": False},
        {"bias": "all", "kv_heads": 2},
        {"bias": "all", "value_rank": 3},
        {"bias": "all", "heads_see": "slice"},
        {"bias": "all", "scale": 0.123456789},
    ],
)
@pytest.mark.parametrize("positions", ["none", "rotary", "alibi"])
def test_every_formula_gives_its_numbers(options, positions):
    torch.manual_seed(3)
    layer = ll.Attention(16, heads=4, **options)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    rotation = ll.Rotary(4)(torch.arange(6)) if positions == "rotary" else None
    bias = ll.alibi(4) if positions == "alibi" else None
    for head in range(4):
        steps = ll.steps(
            layer, torch.randn(6, 16), head=head, rotation=rotation, bias=bias, mask=ll.causal()
        )
        assert check_formulas(steps) >= 9
        assert ("b_Q" in steps, "b_O" in steps) == (
            options["bias"] != "none",
            options["bias"] == "all" and options.get("output", True),
        )
        assert ("cos" in steps) == (positions == "rotary")
        assert steps.missing == ""


def test_every_formula_gives_its_numbers_in_cross_attention_with_a_bias():
    layer = ll.Attention(8, heads=2)
    steps = ll.steps(layer, torch.randn(3, 8), memory=torch.randn(5, 8), bias=torch.randn(3, 5))
    assert check_formulas(steps) >= 9
    assert steps["masked"].formula == "scaled + bias"


@pytest.mark.parametrize("model", ["minilm", "smollm2"])
def test_every_formula_gives_its_numbers_on_a_trained_model(model):
    rec = ll.look("The animal didn't cross the street because it was too tired.", model)
    for layer in (rec.layer_numbers[0], 3, rec.layer_numbers[-1]):
        for head in rec.head_numbers:
            assert check_formulas(rec.steps(layer, head)) >= 9


def test_the_biases_of_a_trained_model_are_steps():
    rec = ll.look("The animal didn't cross the street because it was too tired.")
    steps = rec.steps(3, 1)
    without = steps["concatenation"].value @ steps["W_O"].value
    assert (without - steps["output"].value).abs().max() > 0.1
    torch.testing.assert_close(without + steps["b_O"].value, steps["output"].value)


def test_steps_of_some_heads_lack_only_those_made_of_all_heads():
    whole = ll.look("a few words").steps(3, 1)
    some = ll.look("a few words", heads=[1]).steps(3, 1)
    absent = {"W_O", "b_O", "heads", "concatenation", "output"}
    assert [step.name for step in some] == [step.name for step in whole if step.name not in absent]
    for step in some:
        torch.testing.assert_close(step.value, whole[step.name].value, atol=1e-5, rtol=1e-5)
    assert "they take all heads, and only some were recorded" in some.missing
    assert some.missing in str(some)


def test_steps_of_cross_attention_print_their_shapes():
    layer = ll.Attention(8, heads=2)
    steps = ll.steps(layer, torch.randn(3, 8), memory=torch.randn(6, 8))
    assert steps["weights"].value.shape == (3, 6)
    assert "memory" in steps
    text = str(steps)
    for name in ("weights", "output", "i j = 3 x 6"):
        assert name in text


def test_the_story_of_a_token_follows_its_steps():
    rec = ll.look("The animal didn't cross the street because it was too tired.")
    steps = rec.steps(layer=3, head=1)
    assert [step.name for step in steps] == NAMES
    story = steps.story("it")
    assert story == steps.story(rec.find("it")[0])
    assert story[0].startswith('"it" has a query of 32 numbers')
    assert 'best match "animal" 0.677' in story[2]
    assert 'takes 68% of the value of "animal"' in story[3]
    torch.testing.assert_close(steps["weights"].value, rec.weights(3, 1), atol=1e-6, rtol=1e-5)
    module_input, output = steps["X"].value, steps["output"].value
    layer = ll.load("minilm").stack.blocks[3].attention
    torch.testing.assert_close(layer(module_input[None])[0].detach(), output, atol=1e-5, rtol=1e-4)


def test_a_token_that_may_attend_to_nothing_takes_zeros():
    layer = ll.Attention(4, heads=1)
    steps = ll.steps(layer, torch.randn(2, 4), mask=torch.tensor([[False, False], [True, True]]))
    assert steps.story(0)[-1] == '"0" may look at nothing: it takes zeros'


def test_nan_in_padding_does_not_reach_the_steps():
    layer = ll.Attention(4, heads=2).eval()
    x = torch.randn(3, 4)
    x[2] = torch.nan
    steps = ll.steps(layer, x, mask=ll.padding([2]))
    output = layer(x[None], mask=ll.padding([2]))[0]
    torch.testing.assert_close(steps["output"].value[:2], output[:2].detach())


@pytest.mark.usefixtures("untyped")
def test_invalid_arguments_raise_clear_errors():
    layer = ll.Attention(4, heads=2)
    x = torch.randn(3, 4)
    for call, message in (
        (lambda: ll.steps(torch.nn.Linear(4, 4), x), "layer must be an Attention, found Linear"),
        (lambda: ll.steps(layer, x, head=2), "head must be one of 0 to 1, found 2"),
        (lambda: ll.steps(layer, torch.randn(2, 3, 4)), "x must be one text"),
        (
            lambda: ll.steps(layer, x, words=["a"]),
            "words has 1 words, expected one for each of the 3",
        ),
        (lambda: ll.steps(layer, x)["Z"], "there is no step 'Z': the steps are X, "),
        (lambda: ll.steps(layer, x).story(3), "token must be an index below 3, found 3"),
    ):
        with pytest.raises(OptionError, match=message):
            call()


def test_the_notebook_view_folds_steps_and_escapes_tokens():
    rec = ll.look("A <b>bold</b> cat sat.")
    page = rec.steps(3, 1)._repr_html_()
    assert page.count("<details") == len(rec.steps(3, 1))
    assert page.count("<details open>") == 1
    assert "<b>bold" not in page
    assert f"<td>{float(rec.weights(3, 1)[0, 0]):.4f}</td>" in page


@pytest.mark.parametrize("options", [{"sinks": torch.tensor([0.5, -1.0])}, {}])
def test_steps_show_rows_that_do_not_sum_to_one(options: dict[str, torch.Tensor]):
    """With sinks, or with a link cut without renormalising."""
    x = torch.randn(1, 2, 4, 8)
    call = ll.AttentionCall(x, x, x, **options).without([(1, 0)], renormalise=bool(options))
    _, seen = call.attend(lens=ll.Lens(top=1))
    recording = ll.Recording.of_weights([seen.dense()[0]], list("abcd"))
    steps = replace(recording, layers=(seen,)).steps(0, 1)
    torch.testing.assert_close(steps["weights"].value, seen.dense()[0, 1])
    torch.testing.assert_close(steps["share"].value, seen.dense()[0, 1].sum(-1))
    assert steps["weights"].formula == "share_i · softmax of each row of masked"


@pytest.mark.parametrize("scale", [1e-200, 1e200, 0.0, -1e-7])
def test_a_scale_other_than_one_over_a_root_is_printed_in_digits(scale: float) -> None:
    x = torch.randn(1, 1, 3, 2)
    _, seen = ll.attend(x, x, x, scale=scale, lens=ll.Lens())
    tokens = ll.Recording.of_weights([torch.eye(3)[None]], ["a", "b", "c"]).tokens
    steps = ll.Recording("a b c", tokens, (seen,)).steps(0, 0)
    assert steps["scaled"].formula == f"scores · {scale:.9g}"
