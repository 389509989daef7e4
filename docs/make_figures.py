"""Draw the README's figures and take its screenshot of the page.

    .venv/bin/python docs/make_figures.py

The screenshot needs Chromium and the package playwright; the other figures need matplotlib.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import limelight as ll
from limelight.views import figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent / "figures"
SENTENCE = "The animal didn't cross the street because it was too tired."


def main() -> None:
    """Replace all figures and the screenshot."""
    FOLDER.mkdir(exist_ok=True)
    for name, drawing in drawn().items():
        figure.save_figure(drawing, FOLDER / f"{name}.png")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "attention.html"
        ll.look(SENTENCE).save(page)
        save_screenshot(page)


def drawn() -> dict[str, Figure]:
    """The figures that matplotlib draws, by name."""
    recording = ll.look(SENTENCE)
    return {
        "heat_map": figure.heat_map(recording, 3, 1),
        "all_heads": figure.all_heads(recording),
        "token_graph": figure.token_graph(recording, 3, 1),
        "head_profile": figure.head_profile(recording),
    }


def save_screenshot(page: Path) -> None:
    """Open the page in a browser and save what it shows."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        program = shutil.which("chromium")
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        tab = browser.new_page(
            viewport={"width": 1280, "height": 980}, color_scheme="light", device_scale_factor=1.5
        )
        tab.goto(page.as_uri())
        tab.locator("[data-ready]").wait_for(state="attached")
        tab.wait_for_timeout(400)  # colours fade in
        tab.screenshot(path=FOLDER / "page.png")
        browser.close()


if __name__ == "__main__":
    main()
