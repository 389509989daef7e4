"""The page as a whole: sharing, colours, errors, accessibility."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import torch

from explorer.panels import OpenPage, wait_drawn, wait_until
from limelight.seeing.recording.recording import Recording


def test_the_link_the_python_and_the_files_of_the_share_dialog_have_the_same_weights(
    open_page: OpenPage, rec: Recording, tmp_path: Path
) -> None:
    page = open_page("#head=2.1&token=10&show=log")
    wait_drawn(page, "attention")
    assert page.locator("select[aria-label=Layer]").input_value() == "2"
    wait_until(page, "location.hash.includes('head=2.1')")
    assert "log" in page.evaluate("location.hash")
    page.get_by_role("button", name="Share").click()
    page.locator(".code", has_text="import limelight").wait_for()
    code = page.locator(".code").inner_text()
    namespace: dict[str, object] = {}
    with contextlib.chdir(tmp_path):
        exec(code, namespace)
    torch.testing.assert_close(namespace["weights"], rec.weights(2, 1))
    assert (tmp_path / "attention.png").stat().st_size > 5000
    with page.expect_download() as download:
        page.get_by_role("button", name="JSON").click()
    saved = json.loads(Path(download.value.path()).read_text())
    assert saved["weights"] == rec.weights(2, 1).tolist()
    with page.expect_download() as download:
        page.get_by_role("button", name="HTML").click()
    exported = Path(download.value.path()).read_text()
    assert exported.startswith("<!doctype html>")
    page.get_by_role("button", name="Close").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save heat map as PNG").click()
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_every_colour_of_the_style_sheet_is_defined(open_page: OpenPage) -> None:
    page = open_page()
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


def test_a_link_with_an_unknown_model_shows_an_error_until_the_next_text(
    open_page: OpenPage,
) -> None:
    page = open_page("#model=unknown")
    page.locator(".notice", has_text="does not have").wait_for()
    page.fill(".type", "a new text")
    page.locator(".sentence .token", has_text="new").wait_for()
    assert page.locator(".notice").first.is_hidden()


@pytest.mark.parametrize(
    "panel",
    ["attention", "compare", "steps", "why", "meaning", "cause", "heads", "long", "generation"],
)
def test_every_panel_is_accessible_and_fits_a_narrow_screen(
    open_page: OpenPage, panel: str
) -> None:
    axe = Path(__file__).parent.parent.parent / "node_modules/axe-core/axe.min.js"
    page = open_page(f"#panel={panel}", viewport={"width": 390, "height": 844})
    wait_until(page, f"document.getElementById('app').dataset.panel === '{panel}'")
    page.wait_for_timeout(800)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert axe.exists(), "axe-core is not installed: make setup"
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(300)
        # evaluated, because the page's policy forbids adding a script
        page.evaluate(axe.read_text(encoding="utf-8"))
        report = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        violations = [
            (violation["id"], [node["html"][:120] for node in violation["nodes"]][:3])
            for violation in report["violations"]
            if violation["impact"] in ("serious", "critical")
        ]
        assert violations == [], scheme


def test_the_open_tab_stays_in_view_when_the_window_narrows(open_page: OpenPage) -> None:
    page = open_page("#panel=generation&model=smollm2", viewport={"width": 1280, "height": 900})
    page.locator("#tab-generation[aria-selected=true]").wait_for()
    page.set_viewport_size({"width": 390, "height": 844})
    wait_until(
        page,
        "(() => { const box = document.getElementById('tab-generation').getBoundingClientRect();"
        " return box.left >= 0 && box.right <= innerWidth; })()",
    )
