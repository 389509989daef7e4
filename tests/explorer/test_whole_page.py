"""What holds for the whole page: sharing, colours, errors, accessibility."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from explorer.conftest import Server
from explorer.panels import Opened, drawn, until
from limelight.seeing.recording.recording import Recording


def test_what_is_shared_makes_the_same_picture(
    opened: Opened, server: Server, rec: Recording, tmp_path: Path
) -> None:
    page = opened("#head=2.1&token=10&show=log")
    drawn(page, "attention")
    assert page.locator("select[aria-label=Layer]").input_value() == "2"
    until(page, "location.hash.includes('head=2.1')")
    assert "log" in page.evaluate("location.hash")
    page.get_by_role("button", name="Share").click()
    page.locator(".code", has_text="import limelight").wait_for()
    code = page.locator(".code").inner_text()
    found: dict[str, object] = {}
    (tmp_path / "here").mkdir()
    import os

    before = Path.cwd()
    os.chdir(tmp_path / "here")
    try:
        exec(code, found)
    finally:
        os.chdir(before)
    torch.testing.assert_close(found["weights"], rec.weights(2, 1))
    assert (tmp_path / "here" / "attention.png").stat().st_size > 5000
    with page.expect_download() as waiting:
        page.get_by_role("button", name="JSON").click()
    saved = json.loads(Path(waiting.value.path()).read_text())
    assert saved["weights"] == rec.weights(2, 1).tolist()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="HTML").click()
    exported = Path(waiting.value.path()).read_text()
    assert exported.startswith("<!doctype html>")
    page.get_by_role("button", name="Close").click()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save heat map as PNG").click()
    assert Path(waiting.value.path()).read_bytes().startswith(b"\x89PNG")


def test_every_colour_that_the_style_sheet_names_is_set(opened: Opened) -> None:
    page = opened()
    page.locator(".cell").first.wait_for()
    unset = page.evaluate(
        """() => {
          const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]);
          const used = /--[a-z]+(?=\\))/g;
          const names = new Set(rules.flatMap((rule) => rule.cssText.match(used) ?? []));
          const drawn = getComputedStyle(document.querySelector(".cell"));
          return [...names].filter((name) => !drawn.getPropertyValue(name));
        }"""
    )
    assert unset == []


def test_errors_are_readable_and_the_page_goes_on(opened: Opened) -> None:
    page = opened("#model=unknown")
    page.locator(".notice", has_text="not here").wait_for()
    page.fill(".type", "a new text")
    page.locator(".sentence .token", has_text="new").wait_for()
    assert page.locator(".notice").first.is_hidden()


@pytest.mark.parametrize(
    "panel",
    ["attention", "compare", "steps", "why", "meaning", "cause", "heads", "long", "generation"],
)
def test_every_panel_is_accessible_and_fits_a_narrow_screen(opened: Opened, panel: str) -> None:
    axe = Path(__file__).parent.parent.parent / "node_modules/axe-core/axe.min.js"
    page = opened(f"#panel={panel}", viewport={"width": 390, "height": 844})
    until(page, f"document.getElementById('app').dataset.panel === '{panel}'")
    page.wait_for_timeout(800)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert axe.exists(), "axe-core is not installed: make setup"
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(300)
        # as a function's body: the page's policy lets no script in
        page.evaluate(axe.read_text(encoding="utf-8"))
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        bad = [
            (each["id"], [node["html"][:120] for node in each["nodes"]][:3])
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]
        assert bad == [], (scheme, bad)


def test_the_chosen_tab_stays_in_view_when_the_window_is_narrowed(opened: Opened) -> None:
    page = opened("#panel=generation&model=smollm2", viewport={"width": 1280, "height": 900})
    page.locator("#tab-generation[aria-selected=true]").wait_for()
    page.set_viewport_size({"width": 390, "height": 844})
    until(
        page,
        "(() => { const box = document.getElementById('tab-generation').getBoundingClientRect();"
        " return box.left >= 0 && box.right <= innerWidth; })()",
    )
