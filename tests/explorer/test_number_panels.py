"""The panels of numbers, in a real browser: what they show is what the library computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import limelight as ll
from explorer.conftest import SENTENCE
from explorer.panels import Opened, drawn, signed, three, until
from limelight.insight.shift import Shift
from limelight.seeing.recording.recording import Recording

OTHER = "The animal didn't cross the street because it was too wide."


def test_compare_says_what_changed_for_a_token(opened: Opened, rec: Recording) -> None:
    page = opened("#panel=compare")
    drawn(page, "compare")
    other = ll.look(OTHER).weights(3, 1)[10, 2]
    first = rec.weights(3, 1)[10, 2]
    told = page.locator(".compare .story").inner_text()
    assert told.startswith(f"For it: animal {three(first)} → {three(other)}")
    assert f"−{three(first - other)}" in page.locator("[aria-label=Difference]").inner_text()
    # two heads
    page.select_option("[aria-label='Layer of the second']", "2")
    until(
        page, "document.querySelector('[aria-label=Second]').innerText.includes('layer 2 head 1')"
    )
    assert page.locator(".compare .movers .chip").count() == 12


def test_step_by_step_with_temperature_mask_and_the_worked_example(
    opened: Opened, rec: Recording
) -> None:
    page = opened("#panel=steps")
    drawn(page, "steps-panel")
    assert page.locator("[data-weight]").inner_text() == three(rec.weights(3, 1)[10, 2])
    cells = page.locator(".flow figure[data-step=weights] canvas")
    box = cells.bounding_box()
    assert box is not None
    across = 58 + (box["width"] - 58) * 2.5 / 16
    cells.hover(position={"x": across, "y": box["height"] * 10.5 / 16})
    told = page.locator(".story.numbers").inner_text()
    assert told.startswith(f"weights[it, animal] = {float(rec.weights(3, 1)[10, 2]):.4f}")
    page.mouse.move(0, 0)
    # twice as hot, and no look ahead
    scores = rec.steps(3, 1)["scaled"].value / 10**0.3
    page.fill("#temperature", "0.3")
    hot = scores.softmax(-1)[10]
    until(page, f"document.querySelector('[data-weight]').innerText === '{three(hot.max())}'")
    page.select_option("[aria-label=Mask]", "causal")
    seen = scores[10, :11].softmax(-1)
    until(page, f"document.querySelector('[data-weight]').innerText === '{three(seen.max())}'")
    # the worked example: one number changed, everything after it follows
    page.locator(".worked [data-step=output]").wait_for()
    assert "15 numbers" in page.locator(".slips").inner_text()
    page.fill("[aria-label='X, row 1, column 1']", "2")
    until(
        page, "document.querySelector('.worked [data-step=query] tbody td').innerText !== '1.200'"
    )


def test_the_parts_of_a_score_are_the_library_s(opened: Opened, rec: Recording) -> None:
    page = opened("#panel=why")
    drawn(page, "why-panel")
    split = ll.why(rec, 3, 1, 10, 2)
    assert page.locator(".why-panel .key-name").inner_text() == "animal"
    assert page.locator("[data-score]").inner_text() == signed(split.score)
    assert "normalises after each layer" in page.locator(".reach").inner_text()
    shown = [
        tuple(row.locator("td:not(.bar-cell)").all_inner_texts())
        for row in page.locator(".parts tbody tr").all()
    ]
    assert shown == [(*pair, signed(part)) for *pair, part in split.strongest(12)]
    # every cell is a part, reached by keys as by the pointer
    first, second, part = split.strongest(1)[0]
    cell = page.locator(f".part[aria-label='{first} with {second}: {signed(part)}']")
    cell.hover()
    assert page.locator("[data-part]").inner_text() == signed(part)
    page.locator(".why-frame").focus()
    page.keyboard.press("ArrowUp")
    assert page.locator("[data-part]").count() == 1
    # another key, and the lines of Python that say the same
    page.locator(".link-choice .sentence").last.get_by_text("street").click()
    until(page, "document.querySelector('.why-panel .key-name').innerText === 'street'")
    street = ll.why(rec, 3, 1, "it", "street")
    assert page.locator("[data-score]").inner_text() == signed(street.score)
    namespace: dict[str, Any] = {}
    exec(page.locator(".why-panel .code").text_content() or "", namespace)
    assert namespace["why"].score == pytest.approx(street.score, abs=1e-9)
    # exact where norms come first: a decoder, whose later tokens cannot be chosen
    page = opened("#panel=why&model=smollm2&text=The+cat+sat+on+the+mat&head=2.0&token=4&to=1")
    drawn(page, "why-panel")
    split = ll.why(ll.look("The cat sat on the mat", model="smollm2"), 2, 0, 4, 1)
    assert page.locator("[data-score]").inner_text() == signed(split.score)
    assert "Every source stands by itself" in page.locator(".reach").inner_text()
    assert page.locator(".link-choice .token[disabled]").count() == 1


def test_the_path_of_a_word_is_that_of_the_library(opened: Opened) -> None:
    page = opened("#panel=meaning&text=I+love+apple+phones")
    drawn(page, "meaning")
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
                [signed(float(s[0, g])), signed(float(s[-1, g])), change(float(s[-1, g] - s[0, g]))]
                for g in range(s.shape[1])
            ]
            for s in shift.similarity
        ]

    def change(value: float) -> str:
        return ("+" if value >= 0 else "") + signed(value)

    shift = ll.shift("apple", sentences, groups)
    assert page.locator("[data-nearest]").all_inner_texts() == ["tech", "fruit"]
    assert shown() == expected(shift)
    cells = page.locator(".all-layers tbody td")
    flat = shift.similarity.transpose(0, 1).flatten().tolist()
    assert cells.all_text_contents() == [signed(value) for value in flat]
    namespace: dict[str, Any] = {}
    exec(page.locator(".meaning .code").text_content() or "", namespace)
    torch.testing.assert_close(namespace["shift"].similarity, shift.similarity)
    # another group, another sentence: all numbers follow
    groups["colour"] = ["red", "green"]
    page.fill(
        "[aria-label^='Groups']", "\n".join(f"{k} = {', '.join(v)}" for k, v in groups.items())
    )
    page.fill("[aria-label='The second sentence']", "The apple is ripe.")
    until(page, "document.querySelectorAll('.meaning [data-group=colour]').length === 2")
    until(page, "document.querySelector('.meaning .code').textContent.includes('ripe')")
    assert shown() == expected(ll.shift("apple", [sentences[0], "The apple is ripe."], groups))
    until(page, "location.hash.includes('colour')")
    # the words of a group in another sentence
    page.fill("[aria-label^='The sentence that the words']", "We saw the {} there.")
    until(page, "document.querySelector('.meaning .code').textContent.includes('We saw')")
    template = "We saw the {} there."
    shift = ll.shift("apple", [sentences[0], "The apple is ripe."], groups, template=template)
    assert shown() == expected(shift)
    # a sentence without the word is left out, and marked
    page.fill("[aria-label='The second sentence']", "Pears are ripe.")
    until(page, "document.querySelectorAll('.meaning [data-sentence]').length === 1")
    field = page.locator("[aria-label='The second sentence']")
    assert field.get_attribute("aria-invalid") == "true"


def test_a_cut_link_changes_what_the_library_says(opened: Opened, rec: Recording) -> None:
    page = opened("#panel=cause")
    page.locator(".cause[data-drawn]").wait_for()
    found = ll.cause("minilm", SENTENCE, 10, controls=2, progress=False)
    change = found.forbid.change[3, 1]
    shown = {
        row.locator("th").inner_text(): row.locator("td.strong").inner_text()
        for row in page.locator(".effects tbody tr").all()
    }
    for place, token in enumerate(rec.tokens):
        if token.text in shown and float(change[place]) >= 0.001:
            assert shown[token.text] == f"{float(change[place]):.4f}", token
    page.get_by_role("button", name="Cut the link to animal").click()
    page.locator("[data-sentence]").wait_for()
    page.get_by_role("button", name="Restore all links").click()
    assert page.locator("[data-sentence]").count() == 0


@pytest.mark.soak
def test_roles_of_heads_are_measured_and_lead_to_the_heads(opened: Opened) -> None:
    page = opened("#panel=heads")
    page.get_by_role("button", name="Measure").click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Measure").click()
    previous = page.locator("[data-role=previous] .chip")
    previous.first.wait_for(timeout=300_000)
    expected = ll.heads("minilm", progress=False).top("previous", 1)[0]
    assert previous.first.inner_text().startswith(f"{expected[0]}.{expected[1]}")
    previous.first.click()
    drawn(page, "attention")
    assert page.locator("select[aria-label=Head]").input_value() == str(expected[1])
