"""Long texts, generated text and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import limelight as ll
from explorer.conftest import Server
from explorer.panels import OpenPage, decimals, wait_drawn, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser


DOCUMENT = Path(__file__).parent.parent.parent / "DESIGN.md"


def test_a_long_text_is_a_map_with_exact_tiles(open_page: OpenPage) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")[:1500]
    page = open_page()
    page.fill(".type", text)
    page.get_by_role("tab", name="Long text").click()
    wait_drawn(page, "long")
    rec = ll.look(text)
    count = f"{len(rec.tokens)} tokens"
    wait_until(page, f"document.querySelector('.message').innerText.startsWith('{count}')")
    page.locator(".jump-link").first.wait_for()
    page.locator(".jump-link").first.click()
    page.locator("[data-exact], .map-tip .number").first.wait_for()
    box = page.locator("canvas.map").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.locator("[data-exact]").wait_for()
    query, key = (int(n) for n in page.locator(".map-tip sub").all_inner_texts())
    layer, head = (
        int(page.locator(f"select[aria-label={name}]").input_value()) for name in ("Layer", "Head")
    )
    exact = rec.weights(layer, head)[query, key]
    assert page.locator("[data-exact]").inner_text() == decimals(exact)
    page.fill("[aria-label^='Search for a word']", "attention")
    page.keyboard.press("Enter")
    page.locator("[data-found=attention] .jump-link").first.wait_for()
    # the minimap follows the head
    minimap = "document.querySelector('canvas.minimap').toDataURL()"
    before = page.evaluate(minimap)
    other = (head + 1) % 12
    page.select_option("select[aria-label=Head]", str(other))
    wait_until(page, f"document.querySelector('.long').dataset.drawn === '{layer}.{other}'")
    wait_until(page, f"{minimap} !== '{before}'")


@pytest.mark.soak
def test_a_document_is_read_layer_by_layer_and_searched_in_all_heads(open_page: OpenPage) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")[:5600]
    page = open_page("#model=smollm2")
    page.fill(".type", text)
    page.locator(".reading progress[value]").wait_for()
    page.get_by_role("button", name="Cancel").click()
    wait_until(page, "document.querySelector('.message').innerText.startsWith('Cancelled')")
    page.fill(".type", text + " ")
    wait_drawn(page, "long")
    rec = ll.look(text + " ", model="smollm2")
    assert len(rec.tokens) > 1024
    page.locator("[data-drawn] .cell").first.wait_for()
    page.fill(".heads-grid .find", "kernel → attention")
    page.locator(".cells.ranked").wait_for()
    queries, keys = (
        [k for k, token in enumerate(rec.tokens) if token.text.strip() == word]
        for word in ("kernel", "attention")
    )
    weights = torch.stack([s.rows(queries)[0][..., keys].sum(-1).mean(-1) for s in rec.layers])
    layer, head = divmod(int(weights.argmax()), weights.shape[1])
    best, largest = page.locator(".cells .cell").first, decimals(weights.max())
    assert best.get_attribute("aria-label") == f"Layer {layer}, head {head}: {largest}"
    best.click()
    wait_until(page, f"document.querySelector('.long').dataset.drawn === '{layer}.{head}'")
    page.fill("[aria-label^='Search for a word']", "attention")
    page.keyboard.press("Enter")
    chip = page.locator("[data-found=attention] .jump-link").first
    chip.wait_for()
    query = int(chip.locator("sub").first.inner_text())
    weight = rec.weights(layer, head)[query, keys].sum()
    assert chip.locator(".number").inner_text() == decimals(weight)


def test_the_excerpt_numbers_its_first_and_last_token(open_page: OpenPage) -> None:
    page = open_page("#panel=long&text=The+bank+was+closed.")
    wait_drawn(page, "long")
    last = len(ll.look("The bank was closed.").tokens) - 1
    assert page.locator(".text-beside .hint").inner_text().strip() == f"tokens 0–{last}"


def test_a_decoder_continues_a_text_also_from_another_candidate(open_page: OpenPage) -> None:
    page = open_page("#panel=generation&model=smollm2&text=The+capital+of+France+is")
    page.get_by_role("button", name="Continue").click()
    page.locator(".generation[data-drawn='24']").wait_for()
    expected = ll.generate(ll.load("smollm2"), "The capital of France is", max_tokens=24)
    shown = page.locator(".token.new").all_inner_texts()
    assert len(shown) == len(expected.ids)
    assert shown[0].strip() == "Paris"
    page.locator(".token.new").first.click()
    page.locator(".candidate", has_text="the").first.click()
    wait_until(page, "document.querySelectorAll('.token.new').length > 3")
    assert page.locator(".token.new").first.inner_text().strip() == "the"
    stop = page.get_by_role("button", name="Stop")
    if stop.is_visible():
        stop.click()
    assert page.locator(".generation .small-table tr").count() > 3


def test_the_input_fields_follow_the_generation_panel(open_page: OpenPage) -> None:
    page = open_page("#panel=generation&text=The+capital+of+France+is")
    page.get_by_role("button", name="Use smollm2").click()
    page.get_by_role("button", name="Continue").and_(page.locator(":enabled")).click()
    page.locator(".generation[data-drawn='24']").wait_for()
    assert page.locator("select.models").input_value() == "smollm2"
    page.get_by_role("button", name="Look at the whole text").click()
    wait_drawn(page, "attention")
    text = page.locator("textarea.type").first.input_value()
    assert text.startswith("The capital of France is Paris")
    assert page.locator(".sentence .token").count() == len(ll.look(text, model="smollm2").tokens)


def test_a_picture_is_read_by_a_vision_model(browser: Browser, tmp_path: Path) -> None:
    from PIL import Image
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    model = ViTModel(
        ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                  image_size=64, patch_size=16)
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5 if parameter.ndim > 1 else 1)  # far from uniform
    model.save_pretrained(tmp_path / "vit")
    across = torch.arange(64).expand(64, 64)
    pixels = torch.stack([4 * across, 4 * across.T, 255 - across], dim=-1).to(torch.uint8).numpy()
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    rec = ll.look(pixels, model=str(tmp_path / "vit"))
    server = Server("--port", "0", "--no-open", "--model", str(tmp_path / "vit"), "minilm")
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.set_default_timeout(60_000)
    try:
        page.goto(server.url)
        notice = page.locator(".notice").first
        page.locator(".notice", has_text="reads pictures").wait_for()
        page.set_input_files("#file", tmp_path / "picture.png")
        page.locator(".picture-card .patch").nth(15).wait_for()
        assert notice.is_hidden()
        page.locator("select[aria-label=Layer]").select_option("1")
        page.locator("select[aria-label=Head]").select_option("0")
        page.locator(".picture-card .patch").nth(5).click()
        weights = rec.weights(1, 0)[6]
        best = int(weights[1:].argmax())
        expected = f"1,1 looks at {best // 4},{best % 4} {decimals(weights[1 + best])}"
        wait_until(
            page,
            f"document.querySelector('.picture-card .caption').innerText.startsWith('{expected}')",
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.get_by_role("tab", name="Cause").click()
        page.locator(".notice", has_text="text encoders").wait_for()
        page.locator("select.models").select_option("minilm")
        page.locator(".notice", has_text="minilm reads texts").wait_for()
    finally:
        page.close()
        server.stop()
