"""The page in a browser, opened from a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
import torch

import limelight as ll
from limelight.insight.head_labels import head_labels
from limelight.ops.lens.sources import Recomputed
from limelight.seeing.recording.recording import Recording
from views.pointing import settled, tip_at

if TYPE_CHECKING:
    from playwright.sync_api import Page

Open = Callable[..., "Page"]


def fills(page: Page) -> list[str]:
    """The colours of the heat map, in reading order."""
    settled(page)
    return page.locator("svg.heatmap .cells rect").evaluate_all(
        "all => all.map(cell => cell.getAttribute('fill'))"
    )


def test_hover_shows_the_weight_of_the_cell(sentence: Recording, opened: Open) -> None:
    page = opened(sentence)
    weights = sentence.weights(3, 1)
    tokens = [token.text for token in sentence.tokens]
    for row, column in [(10, 2), (0, 0), (15, 15), (6, 8), (10, 10), (3, 14)]:
        tip = tip_at(page, row, column, len(tokens))
        assert tip == f"{tokens[row]} → {tokens[column]} {weights[row, column]:.3f}"


def test_the_page_opens_at_the_most_salient_link(sentence: Recording, opened: Open) -> None:
    page = opened(sentence)
    assert page.get_by_label("Layer", exact=True).input_value() == "3"
    assert page.get_by_label("Head", exact=True).input_value() == "1"
    assert page.locator(".story").inner_text().startswith("it looks at animal 0.677")


def test_every_weight_prints_as_the_original(sentence: Recording, opened: Open) -> None:
    page = opened(sentence)
    for layer, head in [(0, 0), (2, 11), (5, 7)]:
        page.get_by_label("Layer", exact=True).select_option(str(layer))
        page.get_by_label("Head", exact=True).select_option(str(head))
        exact = sentence.weights(layer, head)
        for row, column in [(1, 1), (4, 12), (9, 0), (14, 13)]:
            tip = tip_at(page, row, column, exact.shape[1])
            assert tip.split()[-1] == f"{exact[row, column]:.3f}"


def test_every_control_changes_the_heat_map(sentence: Recording, opened: Open) -> None:
    page = opened(sentence)
    pictures = [fills(page)]

    def changed() -> None:
        pictures.append(fills(page))
        assert pictures[-1] != pictures[-2]

    page.get_by_label("Next head").click()
    changed()
    page.get_by_label("Layer", exact=True).select_option("0")
    changed()
    for name in ("Background", "Log scale", "Words"):
        page.get_by_role("button", name=name, exact=True).click()
        changed()


def test_words_are_merged_as_the_recording_merges_them(sentence: Recording, opened: Open) -> None:
    page = opened(sentence)
    page.get_by_role("button", name="Words", exact=True).click()
    merged = sentence.by_words()
    words = [token.text for token in merged.tokens]
    assert "didn't" in words
    exact = merged.weights(3, 1)
    row = words.index("didn't")
    for column in range(len(words)):
        tip = tip_at(page, row, column, len(words))
        assert tip.startswith(f"didn't → {words[column]} ")
        assert float(tip.split()[-1]) == pytest.approx(float(exact[row, column]), abs=6e-4)


def test_heads_are_sorted_by_what_they_do(sentence: Recording, opened: Open) -> None:
    page = opened(sentence)
    labels = head_labels("minilm")
    thumbs = page.locator("svg.heads .thumb")
    by_layer = thumbs.evaluate_all("all => all.map(thumb => thumb.getAttribute('aria-label'))")
    assert page.locator("svg.heads text", has_text="coref").count() == sum(
        roles[0].startswith("pronoun") for roles in labels.values()
    )
    page.get_by_label("Sort heads").select_option("role")
    by_role = thumbs.evaluate_all("all => all.map(thumb => thumb.getAttribute('aria-label'))")
    previous = [head for head, roles in labels.items() if roles[0] == "previous"]
    assert by_role[: len(previous)] == [
        f"layer {head.replace('.', ', head ')}" for head in previous
    ]
    assert sorted(by_role) == sorted(by_layer)
    thumbs.first.click()
    page.keyboard.press("ArrowRight")
    settled(page)
    chosen = page.locator("svg.heads .thumb[aria-pressed=true]")
    assert chosen.get_attribute("aria-label") == by_role[1]


def test_background_is_blank_unless_switched_on(sentence: Recording, opened: Open) -> None:
    page = opened(sentence)
    columns = len(sentence.tokens)
    assert len(set(fills(page)[::columns])) == 1
    page.get_by_role("button", name="Background", exact=True).click()
    assert len(set(fills(page)[::columns])) > 4


def test_a_click_locks_a_token_and_escape_releases_it(sentence: Recording, opened: Open) -> None:
    page = opened(sentence)
    street = page.get_by_role("button", name="street", exact=True)
    street.click()
    assert street.get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="tired", exact=True).hover()
    assert page.locator(".story").inner_text().startswith("street looks at")
    page.keyboard.press("Escape")
    assert street.get_attribute("aria-pressed") == "false"
    page.get_by_role("button", name="tired", exact=True).hover()
    page.get_by_role("button", name="cross", exact=True).hover()
    assert page.locator(".story").inner_text().startswith("cross looks at")


def test_the_page_works_by_keyboard_and_every_control_has_a_name(
    sentence: Recording, opened: Open
) -> None:
    page = opened(sentence)
    page.get_by_role("button", name="it", exact=True).focus()
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowRight")
    assert page.locator(".story").inner_text().startswith("was looks at")
    page.keyboard.press("Enter")
    assert (
        page.get_by_role("button", name="was", exact=True).get_attribute("aria-pressed") == "true"
    )
    before = fills(page)
    page.keyboard.press("h")
    assert page.get_by_label("Head", exact=True).input_value() == "2"
    page.keyboard.press("Shift+L")
    assert page.get_by_label("Layer", exact=True).input_value() == "2"
    assert fills(page) != before
    settled(page)
    page.get_by_role("button", name="layer 2, head 2").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.get_by_label("Layer", exact=True).input_value() == "3"
    assert page.get_by_label("Head", exact=True).input_value() == "3"
    nameless = page.locator("button, select, [role=button]").evaluate_all(
        "all => all.map(element => element.getAttribute('aria-label') || element.textContent)"
        ".filter(name => !name.trim()).length"
    )
    assert nameless == 0


def test_links_of_one_token_are_fewer_than_those_of_all(sentence: Recording, opened: Open) -> None:
    page = opened(sentence)
    assert "0.677" in page.locator("svg.arcs").inner_html()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="street", exact=True).hover()
    of_street = page.locator("svg.arcs path").count()
    page.get_by_role("button", name="it", exact=True).click()
    page.get_by_role("button", name="it", exact=True).click()
    page.locator("h3").first.hover()
    assert page.locator("svg.arcs path").count() > of_street


def test_steps_show_the_numbers_of_the_computation(sentence: Recording, opened: Open) -> None:
    page = opened(sentence)
    source = sentence.seen(3).source
    assert isinstance(source, Recomputed)
    query, key = source.problem.query[0, 1, 10], source.problem.key[0, 1, 2]
    row = page.locator(".steps tbody tr").first.inner_text().split()
    product, score, weight = (float(each.replace("−", "-")) for each in row[1:4])
    assert row[0] == "animal"
    assert product == pytest.approx(float(query @ key), abs=0.02)
    assert score == pytest.approx(float(query @ key) * source.problem.scale, abs=0.01)
    assert weight == 0.677
    assert page.locator(".steps .closing").last.inner_text().split() == ["all", "1.000"]


def test_all_heads_are_shown_and_can_be_chosen(sentence: Recording, opened: Open) -> None:
    page = opened(sentence)
    assert page.locator(".thumb").count() == 72
    page.get_by_role("button", name="layer 5, head 11").click()
    settled(page)
    assert page.get_by_label("Layer", exact=True).input_value() == "5"
    assert "Layer 5, head 11" in page.locator(".caption").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colour_scheme_follows_the_system_until_chosen(
    sentence: Recording, opened: Open, scheme: str
) -> None:
    page = opened(sentence, color_scheme=scheme)
    assert page.locator("article").get_attribute("data-scheme") == scheme
    page.get_by_role("button", name="Auto").click()
    page.get_by_role("button", name="Light").click()
    settled(page)
    assert page.locator("article").get_attribute("data-scheme") == "dark"


def test_pictures_are_saved_as_svg_and_png(sentence: Recording, opened: Open) -> None:
    page = opened(sentence)
    for card in ("heatmap", "arcs", "heads"):
        for ending in ("SVG", "PNG"):
            with page.expect_download() as download:
                page.locator(f".card.{card}").get_by_role("button", name=ending).click()
            saved = Path(download.value.path()).read_bytes()
            assert download.value.suggested_filename == f"{card}-layer3-head1.{ending.lower()}"
            if ending == "PNG":
                assert saved.startswith(b"\x89PNG")
                assert len(saved) > 3_000
            else:
                drawn = ElementTree.fromstring(saved)
                assert drawn.tag.endswith("svg")
                texts = [node.text or "" for node in drawn.iter() if node.get("class") == "title"]
                assert [text.split(" · ")[::2] for text in texts] == [["minilm", "layer 3, head 1"]]
            if card != "heads" and ending == "SVG":
                assert "animal" in saved.decode()


@pytest.mark.parametrize("width", [360, 400, 1280])
def test_the_page_never_scrolls_sideways(sentence: Recording, opened: Open, width: int) -> None:
    page = opened(sentence, viewport={"width": width, "height": 740})
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    page.locator("details.every summary").click()
    assert page.get_by_text("query × key").is_visible()
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    card = page.locator(".card.steps-card").bounding_box()
    assert card is not None
    assert card["x"] + card["width"] <= width


def test_on_a_phone_wide_panels_fade_at_their_end_and_the_steps_fit(
    sentence: Recording, opened: Open
) -> None:
    page = opened(sentence, viewport={"width": 400, "height": 740})
    heads = page.locator(".card.heads .scrolls")
    assert heads.get_attribute("data-more") is not None
    heads.evaluate("frame => { frame.scrollLeft = 9999; }")
    page.wait_for_function("frame => !frame.hasAttribute('data-more')", arg=heads.element_handle())
    steps = page.locator(".card.steps-card .scrolls").first
    assert steps.evaluate("frame => frame.scrollWidth - frame.clientWidth") <= 0
    assert page.get_by_role("columnheader", name="value").is_visible()


def test_a_picture_is_lit_by_the_weights_of_a_patch(opened: Open) -> None:
    torch.manual_seed(0)
    config = ll.Config.vit(image=(64, 96), patch=16, width=32, layers=3, heads=4)
    model = ll.VisionEncoder(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.ndim > 1 else 1)  # far from uniform
    pixels = torch.randint(0, 255, (64, 96, 3), dtype=torch.uint8)
    rec = ll.look(pixels.numpy(), model=model)
    page = opened(rec)

    def lit() -> torch.Tensor:
        settled(page)
        veils = page.locator(".patches .patch").evaluate_all(
            "all => all.map(patch => Number(patch.getAttribute('fill-opacity')))"
        )
        return (1 - torch.tensor(veils) / 0.82) ** 2  # relative to the brightest

    def brightness(weights: torch.Tensor) -> torch.Tensor:
        return weights[1:].float() / weights[1:].max()

    page.get_by_label("Layer", exact=True).select_option("1")
    page.get_by_label("Head", exact=True).select_option("2")
    page.locator(".patches .patch").nth(8).click()
    page.mouse.move(0, 0)
    expected = brightness(rec.weights(1, 2)[9])
    torch.testing.assert_close(lit(), expected, atol=5e-3, rtol=0)
    page.get_by_role("button", name="Rollout over all layers").click()
    shares = ll.rollout(rec, 9).shares
    torch.testing.assert_close(lit(), brightness(shares), atol=5e-3, rtol=0)
    page.get_by_role("button", name="[CLS]").first.click()
    page.mouse.move(0, 0)
    torch.testing.assert_close(lit(), brightness(ll.rollout(rec, 0).shares), atol=5e-3, rtol=0)
    assert "[CLS] is made of" in page.locator(".picture-card .caption").inner_text()


def test_several_tokens_are_held_by_touch(sentence: Recording, opened: Open) -> None:
    page = opened(sentence, viewport={"width": 390, "height": 844}, has_touch=True)
    page.get_by_role("button", name="Clear").tap()
    page.get_by_role("button", name="Select several").tap()
    for word in ("because", "tired"):
        page.locator(".sentence .token", has_text=word).tap()
    both = sentence.row(3, 1, ["because", "tired"])
    both[[0, 4, 14, 15]] = 0
    story = page.locator(".story").inner_text()
    assert story.startswith("because + tired look at ")
    assert f"{sentence.tokens[int(both.argmax())].text} {both.max():.3f}" in story
    page.locator(".sentence .token", has_text="because").tap()
    assert page.locator(".story").inner_text().startswith("tired looks at ")
    page.get_by_role("button", name="Clear").tap()
    assert page.locator(".sentence .token[aria-pressed=true]").count() == 0
