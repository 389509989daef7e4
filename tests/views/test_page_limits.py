"""The page with hostile tokens, beside other pages, with long texts; its security policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console

import limelight as ll
from limelight.insight.salience import opening
from limelight.insight.summary import background, summary
from limelight.labels import visible
from limelight.seeing.choice import LENS
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.tokens import plain_tokens
from limelight.views import terminal
from limelight.views.overview import overview
from limelight.views.page.document import file_parts, head_part, header
from limelight.views.page.html import FOLDER, page, safe_json
from views.hostile_tokens import HOSTILE
from views.pointing import tip_at, tip_at_pixel

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Open = Callable[..., "Page"]


def size_of(recording: Recording) -> int:
    return sum(len(piece.encode()) for piece in page(header(recording), file_parts(recording)))


def test_hostile_tokens_are_shown_as_text(hostile: Recording, opened: Open) -> None:
    page = opened(hostile)
    page.get_by_role("button", name="Background", exact=True).click()
    shown = page.locator(".token").all_text_contents()
    for label, token in zip(shown, HOSTILE, strict=True):
        whole = visible(token)
        assert whole.startswith(label.rstrip("…"))
        assert len(label) >= min(len(whole), 5)
    for row in range(len(HOSTILE)):
        assert "→" in tip_at(page, row, row, len(HOSTILE))
    assert page.evaluate("window.hacked") is None
    injected = (
        "document.querySelector('[data-ready]').shadowRoot.querySelectorAll('script, img').length"
    )
    assert page.evaluate(injected) == 0
    assert page.locator(".model").inner_text() == "<b>model</b>"
    with page.expect_download() as download:
        page.locator(".card.heatmap").get_by_role("button", name="SVG").click()
    drawn = ElementTree.fromstring(Path(download.value.path()).read_bytes())
    assert not [element for element in drawn.iter() if element.tag.endswith("script")]


def test_the_policy_blocks_requests_and_other_scripts(
    sentence: Recording, browser: Browser, tmp_path: Path
) -> None:
    sentence.save(tmp_path / "page.html")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    attempts = {
        "img-src": "new Image().src = 'http://127.0.0.1:9/a.png'",
        "connect-src": "fetch('http://127.0.0.1:9/').catch(() => 0)",
        "script-src-elem": "const script = document.createElement('script');"
        " script.textContent = 'window.ran = 1'; document.body.append(script)",
    }
    for directive, code in attempts.items():
        blocked = page.evaluate(
            "new Promise(done => { document.addEventListener('securitypolicyviolation',"
            f" event => done(event.effectiveDirective), {{once: true}}); {code} }})"
        )
        assert blocked == directive
    assert page.evaluate("window.ran") is None
    page.close()


def test_several_recordings_in_a_notebook_do_not_interfere(
    sentence: Recording, hostile: Recording, opened: Open
) -> None:
    cells = [recording._repr_html_() for recording in (sentence, hostile, sentence)]
    outside = (
        "<!doctype html><meta charset=utf-8><style>button{display:none}</style><p>notebook</p>"
    )
    page = opened(outside + "".join(cells))
    hosts = page.locator("[data-ready]")
    hosts.nth(2).wait_for(state="attached")
    assert hosts.count() == 3
    assert page.evaluate("document.querySelectorAll('[id]').length") == 0
    assert page.evaluate("document.querySelectorAll('style').length") == 1
    assert page.evaluate("getComputedStyle(document.querySelector('p')).fontSize") == "16px"
    hosts.nth(0).get_by_label("Next head").click()
    heads = [hosts.nth(k).get_by_label("Head", exact=True).input_value() for k in (0, 2)]
    assert heads == ["2", "1"]


def test_a_sentence_on_twelve_layers_stays_under_a_megabyte() -> None:
    words = [f"word{k}" for k in range(45)]
    text, tokens = plain_tokens(words)
    layers = [
        ll.attend(*(torch.randn(3, 1, 12, 45, 64) * 1.5), lens=ll.Lens())[1] for _ in range(12)
    ]
    recording = Recording(text, tokens, tuple(layers), "random")
    assert size_of(recording) < 1_000_000


@pytest.fixture(scope="module")
def long() -> Recording:
    """A story of about 300 tokens."""
    cast = ["cat", "queen", "river", "old captain", "violin", "moon", "letter", "garden"]
    deeds = ["saw", "followed", "forgot", "painted", "never quite believed", "sang to"]
    story = " ".join(
        f"In year {k} the {cast[k % 8]} {deeds[k % 6]} the {cast[(3 * k + 1) % 8]}, because it"
        f" {deeds[(k * k) % 6]} the {cast[(5 * k) % 8]}."
        for k in range(1, 19)
    )
    return ll.look(story)


def test_the_page_of_a_long_text_stays_small_and_shows_exact_weights(
    long: Recording, opened: Open
) -> None:
    count = len(long.tokens)
    assert 280 <= count <= 320
    assert size_of(long) < 5_000_000
    page = opened(long, viewport={"width": 1280, "height": 1800})
    for layer, head in [(0, 2), (3, 1), (5, 11)]:
        page.get_by_label("Layer", exact=True).select_option(str(layer))
        page.get_by_label("Head", exact=True).select_option(str(head))
        exact = long.weights(layer, head)
        strongest = [divmod(int(k), count) for k in exact.flatten().topk(5).indices]
        for row, column in [*strongest, (7, 60), (100, 100), (200, 31), (250, 251), (17, 283)]:
            tip = tip_at_pixel(page, row, column, count, count)
            assert tip.split()[-1] == f"{exact[row, column]:.3f}"
    closing = page.locator(".steps .closing").last
    assert closing.inner_text().split() == ["all", "1.000"]
    taken = float(exact[251, sorted(background(long))].sum())
    page.keyboard.press("Escape")
    page.get_by_role("button", name=f"Show all {count} tokens").click()
    page.locator(".token").nth(251).focus()
    assert f"{taken:.3f} rests on background tokens" in page.locator(".story").inner_text()


@pytest.mark.parametrize("width", [400, 1280])
def test_a_long_text_has_readable_labels_and_opens_at_its_link(
    long: Recording, opened: Open, width: int
) -> None:
    page = opened(long, viewport={"width": width, "height": 740})
    for side in ("query", "key"):
        labels = page.locator(f"svg.heatmap .{side}-label")
        assert 15 <= labels.count() <= len(long.tokens)
        sizes = labels.evaluate_all("all => all.map(label => +label.getAttribute('font-size'))")
        assert min(sizes) >= 8
    query = page.locator(".token.query")
    assert page.locator("svg.heatmap .query-label").last.text_content() == query.inner_text()
    link = opening(long)
    shown = page.locator(".token").all_inner_texts()
    assert len(shown) < 80
    assert {long.tokens[link.query].text, long.tokens[link.key].text} <= set(shown)
    for frame, inside in (
        (".sentence", ".token.query"),
        (".arcs .scrolls", "svg.arcs [font-weight='650']"),
    ):
        outer = page.locator(frame).bounding_box()
        inner = page.locator(inside).first.bounding_box()
        assert outer is not None
        assert inner is not None
        assert outer["y"] - 1 <= inner["y"] <= outer["y"] + outer["height"]
    assert page.evaluate("scrollY") == 0


def test_counts_of_one_are_singular_and_a_missing_model_name_is_left_out(opened: Open) -> None:
    page = opened(Recording.of_weights([torch.eye(2)[None]], ["a", "b"]))
    assert page.locator(".foot").inner_text().startswith("1 layer · 1 head · 2 tokens")
    assert page.locator(".model").count() == 0


def test_a_causal_model_with_grouped_heads_is_drawn(opened: Open) -> None:
    text, tokens = plain_tokens(["one", "two", "three", "four"])
    q, k, v = torch.randn(1, 4, 4, 8), torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8)
    _, seen = ll.attend(q, k, v, mask=ll.causal(), lens=ll.Lens())
    page = opened(Recording(text, tokens, (seen,), layer_numbers=(7,)))
    assert page.get_by_label("Layer", exact=True).locator("option").all_inner_texts() == ["7"]
    assert tip_at(page, 0, 3, 4) == "one → four 0.000"


def test_cross_attention_between_two_texts_is_drawn(opened: Open) -> None:
    text, tokens = plain_tokens(["the", "cat"])
    query_text, queries = plain_tokens(["le", "chat", "noir"])
    weights = torch.tensor([[[0.9, 0.1], [0.2, 0.8], [0.375, 0.625]]])
    seen = ll.Seen.of_weights(weights[None])
    recording = Recording(text, tokens, (seen,), queries=queries, query_text=query_text)
    page = opened(recording)
    assert tip_at(page, 2, 1, 2) == "noir → cat 0.625"
    assert page.locator(".token").all_inner_texts() == ["le", "chat", "noir"]


def test_a_text_too_long_for_all_weights_has_a_map_exact_tiles_and_an_overview(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limelight.views.page.document.MOST_WHOLE", 10_000)
    monkeypatch.setattr("limelight.views.overview.LONG", 200)
    torch.manual_seed(3)
    words = [f"t{k}" for k in range(300)]
    text, tokens = plain_tokens(words)
    q, k, v = torch.randn(3, 1, 2, 300, 16) * 2
    _, seen = ll.attend(q, k, v, mask=ll.causal(), lens=LENS)
    recording = Recording(text, tokens, (seen,), "random")
    link = opening(recording)
    page = opened(recording, viewport={"width": 1280, "height": 1800})
    story = page.locator(".story").inner_text()
    assert story.startswith(f"t{link.query}")
    assert f"t{link.key} {link.weight:.3f}" in story
    assert page.locator(".heads .caption").inner_text().count("strongest") == 1
    assert page.locator("svg.heatmap .tile").count() == 6
    numbers = overview(recording)
    assert numbers is not None
    output = StringIO()
    Console(width=80, file=output).print(terminal.overview(recording, numbers))
    printed = output.getvalue()
    assert f"{numbers.entropy[0]:.2f} bits" in printed
    bars = page.locator(".layer-bar").evaluate_all("all => all.map(bar => bar.ariaLabel)")
    assert bars == [
        f"layer 0: {numbers.entropy[0]:.2f} bits",
        f"layer 0: {numbers.distance[0]:,.1f} tokens",
    ]
    shares = page.locator(".receiver .number").all_inner_texts()
    assert len(shares) == 8
    assert all(share in printed for share in shares)
    assert page.locator(".overview .worth-link").count() == len(numbers.copies)
    page.locator(".tiles button").nth(1).click()
    part = head_part(recording, link.layer, link.head)
    row, column = part["tiles"][0]["row"], part["tiles"][0]["column"]
    exact = recording.weights(link.layer, link.head)[row : row + 32, column : column + 32]
    for i, j in [(0, 0), (31, 2), (17, 30)]:
        tip = tip_at(page, i, j, exact.shape[1])
        assert tip == f"t{row + i} → t{column + j} {exact[i, j]:.3f}"
    page.get_by_role("button", name="Whole text").click()
    before = page.locator("svg.heatmap image").get_attribute("href")
    page.get_by_role("button", name="Background", exact=True).click()
    assert summary(recording).background == set()
    assert page.locator("svg.heatmap image").get_attribute("href") == before
    assert page.locator(".steps tbody tr").count() == 8


def test_links_to_masked_tokens_are_not_drawn(opened: Open) -> None:
    text, tokens = plain_tokens([f"t{k}" for k in range(9)])
    q, k, v = torch.randn(3, 1, 1, 9, 8)
    _, seen = ll.attend(q, k, v, mask=ll.causal(), lens=LENS)
    page = opened(Recording(text, tokens, (seen,)))
    page.keyboard.press("Escape")
    page.get_by_role("button", name="t1", exact=True).hover()
    assert 0 < page.locator("svg.arcs path").count() <= 2


def test_the_page_modules_can_be_served_as_separate_files(
    sentence: Recording, browser: Browser
) -> None:
    class QuietHandler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(FOLDER)))
    Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{server.server_port}/page.css")
    page.set_content("<div></div>")
    page.evaluate(
        "async (data) => { const { mount } = await import('/mount.js');"
        " const css = await (await fetch('/page.css')).text();"
        " const host = document.querySelector('div');"
        " const part = async (layer, head) => data.parts[`${layer}.${head}`];"
        " await mount(host, data.header, css, host, part); }",
        {"header": header(sentence), "parts": {"3.1": head_part(sentence, 3, 1)}},
    )
    assert page.locator(".story").inner_text().startswith("it looks at animal 0.677")
    page.close()
    server.shutdown()
    server.server_close()


def test_json_cannot_end_its_script_element() -> None:
    text = safe_json({"<!--": "</script>", "amp": "&", "line": "\u2028\u2029"})
    assert not set("<>&\u2028\u2029") & set(text)
