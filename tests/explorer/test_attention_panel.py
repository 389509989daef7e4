"""The attention panel, used as a person would: tokens, weights, heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import limelight as ll
from explorer.conftest import SENTENCE
from explorer.panels import OpenPage, decimals, wait_drawn, wait_story, wait_until
from limelight.insight.summary import background, summary
from limelight.seeing.recording.recording import Recording

if TYPE_CHECKING:
    from playwright.sync_api import Route

BACKGROUND = [0, 4, 14, 15]
"""Tokens of SENTENCE that the page hides at first."""


def test_typing_shows_the_tokens_and_the_strongest_links(open_page: OpenPage) -> None:
    page = open_page()
    assert page.locator(".story").first.inner_text().startswith("it looks at animal 0.677")
    page.fill(".type", "I love apple phones")
    page.locator(".sentence .token", has_text="phones").wait_for()
    labels = page.locator(".sentence .token").all_inner_texts()
    assert labels == ["[CLS]", "I", "love", "apple", "phones", "[SEP]"]
    # each text opens at a head of its own, until the user chooses one, which then stays
    head = page.locator("select[aria-label=Head]")
    page.fill(".type", SENTENCE)
    wait_story(page, "it looks at animal 0.677")
    page.get_by_role("button", name="Layer 0, head 2", exact=True).click()
    page.fill(".type", SENTENCE + " So it slept.")
    page.locator(".sentence .token", has_text="slept").wait_for()
    assert head.input_value() == "2"
    page.get_by_role("button", name="bank").click()
    page.locator(".sentence .token", has_text="river").wait_for()
    page.set_input_files(
        "#file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"A text from a file."}
    )
    page.locator(".sentence .token", has_text="file").wait_for()


def test_a_late_response_is_never_drawn(open_page: OpenPage) -> None:
    page = open_page()
    held: list[Route] = []

    def hold_slow(route: Route) -> None:
        if "slow text" in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/look", hold_slow)
    page.fill(".type", "slow text")
    page.wait_for_timeout(400)
    page.fill(".type", "quick text")
    page.locator(".sentence .token", has_text="quick").wait_for()
    assert len(held) == 1
    held[0].continue_()
    page.wait_for_timeout(1000)
    assert page.locator(".sentence .token", has_text="slow").count() == 0
    assert page.locator(".sentence .token", has_text="quick").count() == 1


def test_rows_heads_searches_and_overlays_show_the_weights_of_the_library(
    open_page: OpenPage, rec: Recording
) -> None:
    page = open_page()
    wait_drawn(page, "attention")
    page.locator(".sentence .token", has_text="tired").hover()
    page.locator(".sentence .token", has_text="because").click()
    story = page.locator(".story").first.inner_text()
    row = rec.row(3, 1, "because")
    row[BACKGROUND] = 0
    assert f"{rec.tokens[int(row.argmax())].text} {decimals(row.max())}" in story
    # the rows of two selected tokens are added
    page.locator(".sentence .token", has_text="tired").click(modifiers=["Shift"])
    both = rec.row(3, 1, ["because", "tired"])
    both[BACKGROUND] = 0
    story = page.locator(".story").first.inner_text()
    assert story.startswith("because + tired look at ")
    assert f"{rec.tokens[int(both.argmax())].text} {decimals(both.max())}" in story
    page.locator(".sentence .token", has_text="tired").click(modifiers=["Shift"])
    # another head, chosen in the grid
    page.get_by_role("button", name="Layer 2, head 1", exact=True).click()
    wait_until(page, "document.querySelector('select[aria-label=Layer]').value === '2'")
    # the heads with the strongest link from it to animal
    page.fill(".find", "it → animal")
    page.locator(".cells.ranked").wait_for()
    best = page.locator(".cells .cell").first.get_attribute("aria-label")
    weights = torch.stack([seen.dense()[0, :, 10, 2] for seen in rec.layers])
    layer, head = divmod(int(weights.argmax()), weights.shape[1])
    assert best == f"Layer {layer}, head {head}: {decimals(weights.max())}"
    page.fill(".find", "")
    page.locator("div.cells:not(.ranked)").wait_for()
    # two heads overlaid, then their mean
    page.get_by_role("button", name="Layer 3, head 1", exact=True).click()
    page.get_by_role("button", name="Layer 2, head 1", exact=True).click(modifiers=["Shift"])
    page.locator(".attention.coloured .overlay path").first.wait_for()
    page.get_by_role("button", name="Colours → mean").click()
    page.locator(".attention:not(.coloured)").wait_for()
    mean = (rec.weights(3, 1) + rec.weights(2, 1)) / 2
    mean[:, BACKGROUND] = 0
    largest = decimals(mean[rec.find("because")[0]].max())
    wait_story(page, largest)


@pytest.mark.parametrize("width", [1440, 390])
def test_the_query_and_the_key_of_a_distant_link_are_both_in_view(
    open_page: OpenPage, width: int
) -> None:
    page = open_page(viewport={"width": width, "height": 844})
    middle = "They walked along the quiet river and spoke of many small things that day. "
    page.fill(".type", f"Mary met the tall man. {middle * 8} Then Mary left.")
    page.locator(".sentence .token.query", has_text="Mary").wait_for()
    assert page.locator(".story").first.inner_text().startswith("Mary128 looks at Mary1 0.9")
    hidden = page.evaluate(
        """() => {
          const frame = document.querySelector(".sentence").getBoundingClientRect();
          const marys = [...document.querySelectorAll(".sentence .token")]
            .filter((token) => token.innerText === "Mary");
          const [query, key] = [marys.at(-1), marys[0]].map((mary) => mary.getBoundingClientRect());
          return Object.entries({ query, key })
            .filter(([, box]) => box.top < frame.top || box.bottom > frame.bottom)
            .map(([name]) => name);
        }"""
    )
    assert hidden == []
    links = page.locator(".card.arcs .scrolls")
    assert links.evaluate("(frame) => frame.scrollHeight <= frame.clientHeight + 1")


def test_heads_are_sorted_by_role_and_by_entropy(open_page: OpenPage, rec: Recording) -> None:
    page = open_page()
    wait_drawn(page, "attention")
    labels = ll.head_labels("minilm")
    cell = page.get_by_role("button", name="Layer 0, head 2", exact=True)
    assert labels["0.2"][0] == "previous"
    assert cell.locator(".role").inner_text() == "prev"
    page.select_option("select[aria-label='Sort heads']", "role")
    order = page.locator("div.cells > *").evaluate_all(
        "cells => cells.map(cell => cell.dataset.role ?? cell.getAttribute('aria-label'))"
    )
    heads = [head for head, roles in labels.items() if roles[0] == "previous"]
    assert order[0] == "previous"
    assert order[1 : 1 + len(heads)] == [f"Layer {head.replace('.', ', head ')}" for head in heads]
    assert sum(name.startswith("Layer") for name in order) == 72
    # sharpest first, by entropy in bits
    page.select_option("select[aria-label='Sort heads']", "entropy")
    sharpest = page.locator("div.cells > .cell").first.get_attribute("aria-label") or ""
    assert sharpest.endswith(f": {float(summary(rec).entropy.min()):.2f}")


def test_value_weighting_words_and_background_tokens(open_page: OpenPage, rec: Recording) -> None:
    page = open_page()
    wait_drawn(page, "attention")
    norms = rec.steps(3, 1)["V"].value.norm(dim=-1)
    valued = decimals(rec.weights(3, 1)[10, 2] * norms[2])
    page.get_by_role("button", name="Value-weighted").click()
    wait_story(page, valued)
    page.get_by_role("button", name="Value-weighted").click()
    page.get_by_role("button", name="Words").click()
    page.locator(".sentence .token", has_text="didn't").hover()
    words = rec.by_words()
    row = words.row(3, 1, "didn't")
    row[sorted(background(words))] = 0
    wait_story(page, decimals(row.max()))
    page.get_by_role("button", name="Background").click()
    page.get_by_role("button", name="Log scale").click()
    page.locator(".sentence .token", has_text="[CLS]").hover()
    assert page.locator(".story").first.inner_text().startswith("[CLS] looks at [CLS] 0.99")
