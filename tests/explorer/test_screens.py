"""Screenshots of every panel at three widths in both schemes, for the eye, in runs/screens/."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.soak

FOLDER = Path(__file__).parent.parent.parent / "runs" / "screens"
DECODER_PANELS = ("generation", "why")
PANELS = ("attention", "compare", "steps", "why", "meaning", "cause", "heads", "long", "generation")


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_fits_every_width(open_page: Callable[..., Page], panel: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    model = "smollm2" if panel in DECODER_PANELS else "minilm"
    page = open_page(f"#panel={panel}&model={model}", viewport={"width": 1440, "height": 1000})
    page.locator(f"#app[data-panel={panel}]").wait_for()
    if page.locator(".tour").count():
        page.keyboard.press("Escape")
    if panel == "generation":
        page.get_by_role("button", name="Continue").click()
    if panel not in ("heads", "generation"):
        page.locator("#stage > [data-drawn]").wait_for()
    page.wait_for_timeout(4000 if panel in ("generation", "cause") else 1000)
    for width in (1440, 1280, 390):
        page.set_viewport_size({"width": width, "height": 844 if width == 390 else 1000})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(400)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            path = FOLDER / f"{panel}-{width}-{scheme}.png"
            page.screenshot(path=path, full_page=True)
            assert path.stat().st_size > 20_000
