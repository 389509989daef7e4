"""The guide is current: generated numbers and figures, notebooks, links, the site."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from PIL import Image, ImageChops

import limelight as ll
from limelight.insight.studies.registry import STUDIES
from limelight.insight.worked.slides import slides

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from playwright.sync_api import Browser

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def _maker(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_generated_number_and_table_is_current() -> None:
    guide = _maker("make_guide")
    made = 0
    for path in guide.pages():
        text = path.read_text(encoding="utf-8")
        made += text.count("<!-- made: ")
        assert guide.filled(text) == text, f"{path}: run docs/make_guide.py"
        assert text.count("<!-- made: ") == text.count("<!-- end -->")
    assert made > 30


def test_every_figure_shows_what_the_code_draws() -> None:
    """Each is drawn again, from stored numbers where computing them takes minutes, and compared."""
    guide, figures = _maker("make_guide"), _maker("make_figures")
    drawn: dict[Path, Figure] = {
        DOCS / "studies" / f"{name}.png": guide.read_study(name).figure() for name in STUDIES
    }
    drawn |= {figures.FOLDER / f"{name}.png": each for name, each in figures.drawn().items()}
    drawn |= {
        figures.FOLDER / "worked" / f"{name}.png": each
        for name, each in slides(ll.worked("apple-phones"))
    }
    for folder in (DOCS / "studies", figures.FOLDER / "worked"):
        assert set(folder.glob("*.png")) <= set(drawn), "a figure that nothing draws"
    for path, figure in drawn.items():
        assert _difference(path, figure) < 0.0003, f"{path}: run the docs/make_*.py that draws it"


def _difference(path: Path, figure: Figure) -> float:
    """The share of pixels that differ by more than fonts may between machines."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=200)
    with Image.open(path) as stored, Image.open(buffer) as drawn:
        if stored.size != drawn.size:
            return 1.0
        difference = ImageChops.difference(stored.convert("L"), drawn.convert("L"))
    counts = difference.histogram()
    return sum(counts[64:]) / sum(counts)


def test_a_figure_of_other_numbers_differs_from_the_stored_one() -> None:
    """Raising one point of one curve by a fifth is enough."""
    guide = _maker("make_guide")
    study = guide.read_study("scaling")
    path = DOCS / "studies" / "scaling.png"
    assert _difference(path, study.figure()) < 0.0003
    first, *others = study.panels
    curve = next(each for each in first.curves if not each.reference)
    moved = replace(curve, y=[1.2 * curve.y[0], *curve.y[1:]])
    curves = [moved if each is curve else each for each in first.curves]
    other = replace(study, panels=(replace(first, curves=curves), *others))
    assert _difference(path, other.figure()) > 0.0003


def test_every_linked_figure_and_page_exists() -> None:
    for path in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
            assert not target.startswith("http"), f"{path} fetches {target}"
            assert (path.parent / target).exists(), f"{path} links to {target}"


def test_the_reference_names_everything_public() -> None:
    pages = (page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    prefixes = tuple(" ".join(re.findall(r"<!-- names: ([\w ]+) -->", "".join(pages))).split())
    assert [home for home in ll._HOME.values() if not home.startswith(prefixes)] == []


@pytest.mark.parametrize("path", sorted((DOCS / "tutorials").glob("*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_runs_unchanged(path: Path, tmp_path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_site_builds_strictly_and_fetches_nothing(tmp_path: Path, browser: Browser) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", tmp_path / "site"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 20
    loads = re.compile(r'<(?:script|img|iframe|source)[^>]+src="?(https?:)?//', re.IGNORECASE)
    styles = re.compile(r'<link[^>]+rel="?stylesheet"?[^>]+href="?(https?:)?//', re.IGNORECASE)
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not loads.search(text), page
        assert not styles.search(text), page
    _opens_from_the_file_system(tmp_path / "site" / "guide" / "softmax.html", browser)


def _opens_from_the_file_system(page: Path, browser: Browser) -> None:
    """A formula is rendered, the search finds a page, and only files are requested."""
    requests: list[str] = []
    tab = browser.new_page()
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(page.as_uri())
    assert tab.locator("math mfrac").count() == 1
    tab.locator("input.md-search__input").press_sequentially("rollout", delay=50)
    tab.locator(".md-search-result__item").first.wait_for(state="attached")
    tab.close()
    assert requests
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
