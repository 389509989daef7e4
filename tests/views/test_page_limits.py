"""The page against hostile tokens, foreign neighbours, long texts; and what it lets out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
import torch

import limelight as ll
from limelight import views
from limelight.labels import visible
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.tokens import plain_tokens
from limelight.views.page.document import document
from limelight.views.page.html import FOLDER, safe_json
from views.hostile_tokens import HOSTILE
from views.pointing import said_at, said_at_pixel

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Open = Callable[..., "Page"]


def test_hostile_tokens_are_shown_as_text(hostile: Recording, opened: Open) -> None:
    page = opened(hostile)
    page.get_by_role("button", name="Sinks", exact=True).click()
    shown = page.locator(".token").all_text_contents()
    for label, token in zip(shown, HOSTILE, strict=True):
        whole = visible(token)
        assert whole.startswith(label.rstrip("…"))
        assert len(label) >= min(len(whole), 5)
    for row in range(len(HOSTILE)):
        assert "→" in said_at(page, row, row, len(HOSTILE))
    page.get_by_role("button", name="Words", exact=True).click()
    assert page.evaluate("window.hacked") is None
    inside = (
        "document.querySelector('[data-ready]').shadowRoot.querySelectorAll('script, img').length"
    )
    assert page.evaluate(inside) == 0
    assert page.locator(".model").inner_text() == "<b>model</b>"
    with page.expect_download() as waiting:
        page.locator(".card.heatmap").get_by_role("button", name="SVG").click()
    drawn = ElementTree.fromstring(Path(waiting.value.path()).read_bytes())
    assert not [one for one in drawn.iter() if one.tag.endswith("script")]


def test_the_policy_lets_no_request_out(
    sentence: Recording, browser: Browser, tmp_path: Path
) -> None:
    sentence.save(tmp_path / "page.html")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    tries = {
        "img-src": "new Image().src = 'http://127.0.0.1:9/a.png'",
        "connect-src": "fetch('http://127.0.0.1:9/').catch(() => 0)",
        "script-src-elem": "const script = document.createElement('script');"
        " script.textContent = 'window.ran = 1'; document.body.append(script)",
    }
    for directive, code in tries.items():
        blocked = page.evaluate(
            "new Promise(done => { document.addEventListener('securitypolicyviolation',"
            f" event => done(event.effectiveDirective), {{once: true}}); {code} }})"
        )
        assert blocked == directive
    assert page.evaluate("window.ran") is None
    page.close()


def test_several_in_a_notebook_do_not_disturb_each_other(
    sentence: Recording, hostile: Recording, opened: Open
) -> None:
    cells = [one._repr_html_() for one in (sentence, hostile, sentence)]
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
    assert len(views.page.page(document(recording)).encode()) < 1_000_000


@pytest.fixture(scope="module")
def long() -> Recording:
    """300 tokens of a story that goes on and on."""
    cast = ["cat", "queen", "river", "old captain", "violin", "moon", "letter", "garden"]
    deeds = ["saw", "followed", "forgot", "painted", "never quite believed", "sang to"]
    story = " ".join(
        f"In year {k} the {cast[k % 8]} {deeds[k % 6]} the {cast[(3 * k + 1) % 8]}, because it"
        f" {deeds[(k * k) % 6]} the {cast[(5 * k) % 8]}."
        for k in range(1, 19)
    )
    return ll.look(story)


def test_a_long_text_makes_a_page_that_can_be_sent_and_still_tells_the_weights(
    long: Recording, opened: Open
) -> None:
    count = len(long.tokens)
    assert 280 <= count <= 320
    assert len(views.page.page(document(long)).encode()) < 5_000_000
    page = opened(long, viewport={"width": 1280, "height": 1800})
    for layer, head in [(0, 2), (3, 1), (5, 11)]:
        page.get_by_label("Layer", exact=True).select_option(str(layer))
        page.get_by_label("Head", exact=True).select_option(str(head))
        exact = long.weights(layer, head)
        places = [divmod(int(k), count) for k in exact.flatten().topk(5).indices]
        for row, column in [*places, (7, 60), (100, 100), (200, 31), (250, 251), (17, 283)]:
            said = said_at_pixel(page, row, column, count, count)
            assert said.split()[-1] == f"{exact[row, column]:.3f}"
    closing = page.locator(".steps .closing").last
    assert closing.inner_text().split() == ["all", "1.000"]
    apart = float(exact[251, sorted(long.set_apart)].sum())
    page.keyboard.press("Escape")
    page.locator(".token").nth(251).focus()
    assert f"{apart:.3f} rests on tokens set apart" in page.locator(".story").inner_text()


@pytest.mark.parametrize("width", [400, 1280])
def test_a_long_text_is_labelled_and_opens_where_its_link_is(
    long: Recording, opened: Open, width: int
) -> None:
    page = opened(long, viewport={"width": width, "height": 740})
    for side in ("asks", "answers"):
        labels = page.locator(f"svg.heatmap .{side}-label")
        assert 15 <= labels.count() <= len(long.tokens)
        sizes = labels.evaluate_all("all => all.map(one => +one.getAttribute('font-size'))")
        assert min(sizes) >= 8
    asker = page.locator(".token.asks")
    assert page.locator("svg.heatmap .asks-label").last.text_content() == asker.inner_text()
    for frame, inside in (
        (".sentence", ".token.asks"),
        (".arcs .scrolls", "svg.arcs [font-weight='650']"),
    ):
        outer = page.locator(frame).bounding_box()
        inner = page.locator(inside).first.bounding_box()
        assert outer is not None
        assert inner is not None
        assert outer["y"] - 1 <= inner["y"] <= outer["y"] + outer["height"]
    assert page.evaluate("scrollY") == 0


def test_one_layer_without_a_name_is_said_as_it_is(opened: Open) -> None:
    page = opened(Recording.of_weights([torch.eye(2)[None]], ["a", "b"]))
    assert page.locator(".foot").inner_text().startswith("1 layer · 1 head · 2 tokens")
    assert page.locator(".model").count() == 0


def test_a_causal_model_with_grouped_heads_is_drawn(opened: Open) -> None:
    text, tokens = plain_tokens(["one", "two", "three", "four"])
    q, k, v = torch.randn(1, 4, 4, 8), torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8)
    _, seen = ll.attend(q, k, v, mask=ll.causal(), lens=ll.Lens())
    page = opened(Recording(text, tokens, (seen,), layer_numbers=(7,)))
    assert page.get_by_label("Layer", exact=True).locator("option").all_inner_texts() == ["7"]
    assert said_at(page, 0, 3, 4) == "one → four 0.000"


def test_two_texts_are_drawn(opened: Open) -> None:
    """Cross-attention: other tokens ask than answer."""
    text, tokens = plain_tokens(["the", "cat"])
    asking, queries = plain_tokens(["le", "chat", "noir"])
    weights = torch.tensor([[[0.9, 0.1], [0.2, 0.8], [0.375, 0.625]]])
    recording = Recording(
        text, tokens, (ll.Seen.of_weights(weights[None]),), queries=queries, query_text=asking
    )
    page = opened(recording)
    assert said_at(page, 2, 1, 2) == "noir → cat 0.625"
    assert page.locator(".token").all_inner_texts() == ["le", "chat", "noir"]


def test_a_long_text_is_shown_in_runs(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limelight.views.page.document.MOST_WEIGHTS", 400)
    weights = torch.rand(1, 50, 50).softmax(-1)
    recording = Recording.of_weights([weights], [f"t{k}" for k in range(50)])
    found = document(recording)
    assert found["runs"] == 3
    assert len(found["queries"]["labels"]) == 17
    page = opened(recording)
    expected = float(weights[0, 3:6, 6:9].mean(0).sum())
    assert said_at(page, 1, 2, 17) == f"t3 t4 t5 → t6 t7 t8 {expected:.3f}"
    assert "in runs of 3" in page.locator(".foot").inner_text()


def test_the_modules_can_be_served_one_by_one(sentence: Recording, browser: Browser) -> None:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(FOLDER)))
    Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{server.server_port}/page.css")
    page.set_content("<div></div>")
    page.evaluate(
        "async (data) => { const { mount } = await import('/mount.js');"
        " const css = await (await fetch('/page.css')).text();"
        " await mount(document.querySelector('div'), data, css); }",
        document(sentence),
    )
    assert page.locator(".story").inner_text().startswith("it looks at animal 0.677")
    page.close()
    server.shutdown()
    server.server_close()


def test_json_cannot_leave_its_script_element() -> None:
    text = safe_json({"<!--": "</script>", "amp": "&", "line": "\u2028\u2029"})
    assert not set("<>&\u2028\u2029") & set(text)
