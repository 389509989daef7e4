"""The panel that opens first, used as a person would: tokens, weights, heads."""

from __future__ import annotations

import pytest
import torch

import limelight as ll
from explorer.conftest import SENTENCE
from explorer.panels import Opened, drawn, three, until
from limelight.insight.summary import background, summary
from limelight.seeing.recording.recording import Recording


def test_typing_shows_the_tokens_and_the_strongest_links(opened: Opened) -> None:
    page = opened()
    assert page.locator(".story").first.inner_text().startswith("it looks at animal 0.677")
    page.fill(".type", "I love apple phones")
    page.locator(".sentence .token", has_text="phones").wait_for()
    labels = page.locator(".sentence .token").all_inner_texts()
    assert labels == ["[CLS]", "I", "love", "apple", "phones", "[SEP]"]
    # the head follows the text until a person chooses one; then it stays
    chosen = page.locator("select[aria-label=Head]")
    page.fill(".type", SENTENCE)
    until(page, "document.querySelector('.story').innerText.startsWith('it looks at animal 0.677')")
    page.get_by_role("button", name="Layer 0, head 2", exact=True).click()
    page.fill(".type", SENTENCE + " So it slept.")
    page.locator(".sentence .token", has_text="slept").wait_for()
    assert chosen.input_value() == "2"
    page.get_by_role("button", name="bank").click()
    page.locator(".sentence .token", has_text="river").wait_for()
    # the text is dropped as a file, too
    page.set_input_files(
        "#file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"A dropped text."}
    )
    page.locator(".sentence .token", has_text="dropped").wait_for()


def test_a_late_answer_is_never_drawn(opened: Opened) -> None:
    page = opened()
    held: list[object] = []

    def hold(route: object) -> None:
        if "slow text" in (route.request.post_data or ""):  # pyright: ignore
            held.append(route)
        else:
            route.continue_()  # pyright: ignore

    page.route("**/api/look", hold)
    page.fill(".type", "slow text")
    page.wait_for_timeout(400)
    page.fill(".type", "quick text")
    page.locator(".sentence .token", has_text="quick").wait_for()
    for route in held:
        route.abort()  # pyright: ignore
    page.wait_for_timeout(300)
    assert page.locator(".sentence .token", has_text="slow").count() == 0


def test_attention_rows_heads_search_and_overlay(opened: Opened, rec: Recording) -> None:
    page = opened()
    drawn(page, "attention")
    page.locator(".sentence .token", has_text="tired").hover()
    page.locator(".sentence .token", has_text="because").click()
    told = page.locator(".story").first.inner_text()
    row = rec.row(3, 1, "because")
    row[[0, 4, 14, 15]] = 0  # background tokens are hidden
    assert f"{rec.tokens[int(row.argmax())].text} {three(row.max())}" in told
    # two tokens held: their rows added up
    page.locator(".sentence .token", has_text="tired").click(modifiers=["Shift"])
    both = rec.row(3, 1, ["because", "tired"])
    both[[0, 4, 14, 15]] = 0
    told = page.locator(".story").first.inner_text()
    assert told.startswith("because + tired look at ")
    assert f"{rec.tokens[int(both.argmax())].text} {three(both.max())}" in told
    page.locator(".sentence .token", has_text="tired").click(modifiers=["Shift"])
    # another head by the grid
    page.get_by_role("button", name="Layer 2, head 1", exact=True).click()
    until(page, "document.querySelector('select[aria-label=Layer]').value === '2'")
    # which heads look from it to animal?
    page.fill(".find", "it → animal")
    page.locator(".cells.ranked").wait_for()
    best = page.locator(".cells .cell").first.get_attribute("aria-label")
    weights = torch.stack([seen.dense()[0, :, 10, 2] for seen in rec.layers])
    layer, head = divmod(int(weights.argmax()), weights.shape[1])
    assert best == f"Layer {layer}, head {head}: {three(weights.max())}"
    page.fill(".find", "")
    page.locator("div.cells:not(.ranked)").wait_for()
    # two heads over one another, then their mean
    page.get_by_role("button", name="Layer 3, head 1", exact=True).click()
    page.get_by_role("button", name="Layer 2, head 1", exact=True).click(modifiers=["Shift"])
    page.locator(".attention.coloured .overlay path").first.wait_for()
    page.get_by_role("button", name="Colours → mean").click()
    page.locator(".attention:not(.coloured)").wait_for()
    mean = (rec.weights(3, 1) + rec.weights(2, 1)) / 2
    mean[:, [0, 4, 14, 15]] = 0
    best = three(mean[rec.find("because")[0]].max())
    until(page, f"document.querySelector('.story').innerText.includes('{best}')")


@pytest.mark.parametrize("width", [1440, 390])
def test_who_asks_and_who_answers_are_both_in_view(opened: Opened, width: int) -> None:
    page = opened(viewport={"width": width, "height": 844})
    middle = "They walked along the quiet river and spoke of many small things that day. "
    page.fill(".type", f"Mary met the tall man. {middle * 8} Then Mary left.")
    page.locator(".sentence .token.query", has_text="Mary").wait_for()
    assert page.locator(".story").first.inner_text().startswith("Mary128 looks at Mary1 0.9")
    hidden = page.evaluate(
        """() => ["asks", "answers"].filter((side) => {
          const frame = document.querySelector(".sentence").getBoundingClientRect();
          const marys = [...document.querySelectorAll(".sentence .token")]
            .filter((token) => token.innerText === "Mary");
          const box = marys[side === "asks" ? marys.length - 1 : 0].getBoundingClientRect();
          return box.top < frame.top || box.bottom > frame.bottom;
        })"""
    )
    assert hidden == []
    links = page.locator(".card.arcs .scrolls")
    assert links.evaluate("(frame) => frame.scrollHeight <= frame.clientHeight + 1")


def test_heads_are_sorted_by_what_they_do(opened: Opened, rec: Recording) -> None:
    page = opened()
    drawn(page, "attention")
    labels = ll.head_labels("minilm")
    cell = page.get_by_role("button", name="Layer 0, head 2", exact=True)
    assert labels["0.2"][0] == "previous"
    assert cell.locator(".role").inner_text() == "prev"
    page.select_option("select[aria-label='Sort heads']", "role")
    order = page.locator("div.cells > *").evaluate_all(
        "all => all.map(e => e.dataset.role ?? e.getAttribute('aria-label'))"
    )
    first = [head for head, roles in labels.items() if roles[0] == "previous"]
    assert order[0] == "previous"
    assert order[1 : 1 + len(first)] == [f"Layer {head.replace('.', ', head ')}" for head in first]
    assert sum(name.startswith("Layer") for name in order) == 72
    # sharpest first, in the bits that the caption and the page name
    page.select_option("select[aria-label='Sort heads']", "entropy")
    sharpest = page.locator("div.cells > .cell").first.get_attribute("aria-label") or ""
    assert sharpest.endswith(f": {float(summary(rec).entropy.min()):.2f}")


def test_value_weights_words_background_and_scale(opened: Opened, rec: Recording) -> None:
    page = opened()
    drawn(page, "attention")
    norms = rec.steps(3, 1)["V"].value.norm(dim=-1)
    carried = float(rec.weights(3, 1)[10, 2] * norms[2])
    page.get_by_role("button", name="Value-weighted").click()
    until(page, f"document.querySelector('.story').innerText.includes('{three(carried)}')")
    page.get_by_role("button", name="Value-weighted").click()
    page.get_by_role("button", name="Words").click()
    page.locator(".sentence .token", has_text="didn't").hover()
    words = rec.by_words()
    row = words.row(3, 1, "didn't")
    row[sorted(background(words))] = 0
    until(page, f"document.querySelector('.story').innerText.includes('{three(row.max())}')")
    page.get_by_role("button", name="Background").click()
    page.get_by_role("button", name="Log scale").click()
    page.locator(".sentence .token", has_text="[CLS]").hover()
    assert page.locator(".story").first.inner_text().startswith("[CLS] looks at [CLS] 0.99")
