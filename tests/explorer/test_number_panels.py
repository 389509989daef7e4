"""The panels of numbers, in a real browser: they show what the library computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import limelight as ll
from explorer.conftest import SENTENCE
from explorer.panels import OpenPage, decimals, wait_drawn, wait_until
from limelight.insight.shift import Shift
from limelight.seeing.recording.recording import Recording

OTHER = "The animal didn't cross the street because it was too wide."


def test_compare_shows_how_the_weights_of_a_token_change(
    open_page: OpenPage, rec: Recording
) -> None:
    page = open_page("#panel=compare")
    wait_drawn(page, "compare")
    first, second = rec.weights(3, 1)[10, 2], ll.look(OTHER).weights(3, 1)[10, 2]
    story = page.locator(".compare .story").inner_text()
    assert story.startswith(f"For it: animal {decimals(first)} → {decimals(second)}")
    assert decimals(second - first) in page.locator("[aria-label=Difference]").inner_text()
    # another head for the second text
    page.select_option("[aria-label='Layer of the second text']", "2")
    wait_until(
        page, "document.querySelector('[aria-label=Second]').innerText.includes('layer 2 head 1')"
    )
    assert page.locator(".compare .chips .chip").count() == 12


def test_step_by_step_follows_the_temperature_the_mask_and_edits_of_the_worked_example(
    open_page: OpenPage, rec: Recording
) -> None:
    page = open_page("#panel=steps")
    wait_drawn(page, "steps-panel")
    assert page.locator("[data-weight]").inner_text() == decimals(rec.weights(3, 1)[10, 2])
    cells = page.locator(".flow figure[data-step=weights] canvas")
    box = cells.bounding_box()
    assert box is not None
    across = 58 + (box["width"] - 58) * 2.5 / 16
    cells.hover(position={"x": across, "y": box["height"] * 10.5 / 16})
    story = page.locator(".story.numbers").inner_text()
    assert story.startswith(f"weights[it, animal] = {float(rec.weights(3, 1)[10, 2]):.4f}")
    page.mouse.move(0, 0)
    # a temperature of 10^0.3, about 2, then a causal mask
    shown_weight = "document.querySelector('[data-weight]').innerText"
    scores = rec.steps(3, 1)["scaled"].value / 10**0.3
    page.fill("#temperature", "0.3")
    wait_until(page, f"{shown_weight} === '{decimals(scores[10].softmax(-1).max())}'")
    page.select_option("[aria-label=Mask]", "causal")
    wait_until(page, f"{shown_weight} === '{decimals(scores[10, :11].softmax(-1).max())}'")
    # a changed number of the worked example changes the steps after it
    page.locator(".worked [data-step=output]").wait_for()
    assert "15 numbers" in page.locator(".mismatches").inner_text()
    page.fill("[aria-label='X, row 1, column 1']", "2")
    wait_until(
        page, "document.querySelector('.worked [data-step=query] tbody td').innerText !== '1.200'"
    )


def test_the_parts_of_a_score_equal_those_of_the_library(
    open_page: OpenPage, rec: Recording
) -> None:
    page = open_page("#panel=why")
    wait_drawn(page, "why-panel")
    split = ll.why(rec, 3, 1, 10, 2)
    assert page.locator(".why-panel .key-name").inner_text() == "animal"
    assert page.locator("[data-score]").inner_text() == decimals(split.score)
    assert "normalises after each layer" in page.locator(".reach").inner_text()
    shown = [
        tuple(row.locator("td:not(.bar-cell)").all_inner_texts())
        for row in page.locator(".parts tbody tr").all()
    ]
    assert shown == [(*pair, decimals(part)) for *pair, part in split.strongest(12)]
    # a cell shows its part under the pointer and with the arrow keys
    first, second, part = split.strongest(1)[0]
    cell = page.locator(f".part[aria-label='{first} with {second}: {decimals(part)}']")
    cell.hover()
    assert page.locator("[data-part]").inner_text() == decimals(part)
    page.locator(".why-frame").focus()
    page.keyboard.press("ArrowUp")
    assert page.locator("[data-part]").count() == 1
    # another key, and the lines of Python with the same result
    page.locator(".link-choice .sentence").last.get_by_text("street").click()
    wait_until(page, "document.querySelector('.why-panel .key-name').innerText === 'street'")
    street = ll.why(rec, 3, 1, "it", "street")
    assert page.locator("[data-score]").inner_text() == decimals(street.score)
    namespace: dict[str, Any] = {}
    exec(page.locator(".why-panel .code").text_content() or "", namespace)
    assert namespace["why"].score == pytest.approx(street.score, abs=1e-9)
    # exact in a pre-norm decoder, where future tokens cannot be chosen
    page = open_page("#panel=why&model=smollm2&text=The+cat+sat+on+the+mat&head=2.0&token=4&to=1")
    wait_drawn(page, "why-panel")
    split = ll.why(ll.look("The cat sat on the mat", model="smollm2"), 2, 0, 4, 1)
    assert page.locator("[data-score]").inner_text() == decimals(split.score)
    assert "Every source is separate" in page.locator(".reach").inner_text()
    assert page.locator(".link-choice .token[disabled]").count() == 1


def test_the_path_of_a_word_equals_that_of_the_library(open_page: OpenPage) -> None:
    page = open_page("#panel=meaning&text=I+love+apple+phones")
    wait_drawn(page, "meaning")
    sentences = ["I love apple phones", "I love apple pie"]
    groups = {"fruit": ["banana", "pear", "mango"], "tech": ["laptop", "computer", "phone"]}

    def shown() -> list[list[list[str]]]:
        return [
            [
                row.locator("td").all_inner_texts()
                for row in card.locator(".nearness tbody tr").all()
            ]
            for card in page.locator(".meaning [data-sentence]").all()
        ]

    def expected(shift: Shift) -> list[list[list[str]]]:
        return [
            [
                [decimals(s[0, g]), decimals(s[-1, g]), change(float(s[-1, g] - s[0, g]))]
                for g in range(s.shape[1])
            ]
            for s in shift.similarity
        ]

    def change(value: float) -> str:
        return ("+" if value >= 0 else "") + decimals(value)

    shift = ll.shift("apple", sentences, groups)
    assert page.locator("[data-nearest]").all_inner_texts() == ["tech", "fruit"]
    assert shown() == expected(shift)
    cells = page.locator(".all-layers tbody td")
    flat = shift.similarity.transpose(0, 1).flatten().tolist()
    assert cells.all_text_contents() == [decimals(value) for value in flat]
    namespace: dict[str, Any] = {}
    exec(page.locator(".meaning .code").text_content() or "", namespace)
    torch.testing.assert_close(namespace["shift"].similarity, shift.similarity)
    # another group and another sentence
    groups["colour"] = ["red", "green"]
    page.fill(
        "[aria-label^='Groups']", "\n".join(f"{k} = {', '.join(v)}" for k, v in groups.items())
    )
    page.fill("[aria-label='The second sentence']", "The apple is ripe.")
    wait_until(page, "document.querySelectorAll('.meaning [data-group=colour]').length === 2")
    wait_until(page, "document.querySelector('.meaning .code').textContent.includes('ripe')")
    assert shown() == expected(ll.shift("apple", [sentences[0], "The apple is ripe."], groups))
    wait_until(page, "location.hash.includes('colour')")
    # another sentence for the words of the groups
    page.fill("[aria-label^='The sentence for the words']", "We saw the {} there.")
    wait_until(page, "document.querySelector('.meaning .code').textContent.includes('We saw')")
    template = "We saw the {} there."
    shift = ll.shift("apple", [sentences[0], "The apple is ripe."], groups, template=template)
    assert shown() == expected(shift)
    # a sentence without the word is left out, and marked
    page.fill("[aria-label='The second sentence']", "Pears are ripe.")
    wait_until(page, "document.querySelectorAll('.meaning [data-sentence]').length === 1")
    field = page.locator("[aria-label='The second sentence']")
    assert field.get_attribute("aria-invalid") == "true"


def test_the_effects_of_cut_links_equal_those_of_the_library(
    open_page: OpenPage, rec: Recording
) -> None:
    page = open_page("#panel=cause")
    page.locator(".cause[data-drawn]").wait_for()
    changes = ll.cause("minilm", SENTENCE, 10, controls=2, progress=False).forbid.change[3, 1]
    shown = {
        row.locator("th").inner_text(): row.locator("td.strong").inner_text()
        for row in page.locator(".effects tbody tr").all()
    }
    expected = {
        token.text: f"{float(change):.4f}"
        for token, change in zip(rec.tokens, changes, strict=True)
        if token.text in shown and float(change) >= 0.001
    }
    assert "animal" in expected
    assert expected.items() <= shown.items()
    page.get_by_role("button", name="Cut the link to animal").click()
    page.locator("[data-sentence]").wait_for()
    page.get_by_role("button", name="Restore all links").click()
    assert page.locator("[data-sentence]").count() == 0


@pytest.mark.soak
def test_measured_roles_equal_those_of_the_library_and_open_a_head(open_page: OpenPage) -> None:
    page = open_page("#panel=heads")
    page.get_by_role("button", name="Measure").click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Measure").click()
    previous = page.locator("[data-role=previous] .chip")
    previous.first.wait_for(timeout=300_000)
    expected = ll.heads("minilm", progress=False).top("previous", 1)[0]
    assert previous.first.inner_text().startswith(f"{expected[0]}.{expected[1]}")
    previous.first.click()
    wait_drawn(page, "attention")
    assert page.locator("select[aria-label=Head]").input_value() == str(expected[1])
