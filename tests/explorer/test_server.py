"""The API: weights equal to the library's, readable errors, and a server that stays up."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pytest
import torch

import limelight as ll
from explorer.conftest import SENTENCE, Server
from limelight.explorer.frames import parse_frame

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def look(server: Server, text: str = SENTENCE) -> httpx.Response:
    return server.post("api/look", model="minilm", text=text)


def test_all_weights_and_the_sum_of_a_link_equal_those_of_the_library(server: Server) -> None:
    header, arrays = parse_frame(look(server).content)
    rec = ll.look(SENTENCE)
    assert header["queries"]["labels"] == [token.text for token in rec.tokens]
    weights = torch.stack([seen.dense()[0] for seen in rec.layers])
    torch.testing.assert_close(arrays["weights"], weights, rtol=0, atol=1e-6)
    response = server.post("api/link", model="minilm", text=SENTENCE, queries=[8, 10], keys=[2, 5])
    link = weights[:, :, [8, 10]][..., [2, 5]].sum(-1).mean(-1)
    torch.testing.assert_close(parse_frame(response.content)[1]["weights"], link)


def test_a_tile_has_the_exact_weights_and_a_pooled_cell_the_largest_of_them(
    server: Server,
) -> None:
    text = " ".join([SENTENCE] * 20)
    rec = ll.look(text)
    weights = rec.weights(3, 1)
    head = {"model": "minilm", "text": text, "layer": 3, "head": 1}
    tile = parse_frame(server.post("api/tile", **head, top=40, left=96, size=32).content)[1]
    torch.testing.assert_close(tile["weights"], weights[40:72, 96:128], rtol=0, atol=1e-6)
    pooled = parse_frame(server.post("api/tile", **head, top=0, left=0, size=8, run=4).content)[1]
    cells = weights[:32, :32].unflatten(1, (8, 4)).unflatten(0, (8, 4)).amax((1, 3))
    torch.testing.assert_close(pooled["weights"], cells, rtol=0, atol=1e-6)
    overview = parse_frame(server.post("api/overview", **head).content)[1]
    torch.testing.assert_close(overview["received"], weights.sum(0), rtol=0, atol=1e-4)
    sums = parse_frame(server.post("api/tokens", **head, tokens=[2, 18]).content)[1]
    torch.testing.assert_close(sums["from"], weights[:, [2, 18]].sum(1), rtol=0, atol=1e-5)


def test_links_of_a_word_are_summed_over_hundreds_of_occurrences(server: Server) -> None:
    text = "the cat " * 250
    rec = ll.look(text)
    the, cat = ([k for k, t in enumerate(rec.tokens) if t.text == w] for w in ("the", "cat"))
    assert len(the) == 250
    tokens = [*the, *cat]
    weights = torch.stack([seen.dense()[0] for seen in rec.layers])
    response = server.post("api/link", model="minilm", text=text, queries=tokens, keys=cat)
    link = weights[:, :, tokens][..., cat].sum(-1).mean(-1)
    torch.testing.assert_close(
        parse_frame(response.content)[1]["weights"], link, rtol=1e-4, atol=1e-5
    )
    head = {"model": "minilm", "text": text, "layer": 3, "head": 1}
    sums = parse_frame(server.post("api/tokens", **head, tokens=tokens).content)[1]
    torch.testing.assert_close(sums["from"], weights[3, 1][:, tokens].sum(1), rtol=0, atol=1e-4)
    torch.testing.assert_close(sums["to"], weights[3, 1][tokens].sum(0), rtol=1e-4, atol=1e-4)


def test_candidates_for_the_next_token_have_their_own_text_and_a_visible_label(
    server: Server,
) -> None:
    response = server.post("api/generate", model="smollm2", text="one\ntwo\nthree", max_tokens=1)
    events = [
        json.loads(event.removeprefix("data: ")) for event in response.text.split("\n\n")[:-1]
    ]
    tokenizer = ll.load("smollm2").tokens
    assert tokenizer is not None
    candidates = events[1]["candidates"]
    assert [c["text"] for c in candidates] == [tokenizer.decode([c["id"]]) for c in candidates]
    assert "↵" in [c["label"] for c in candidates if c["text"] == "\n"]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "not JSON"),
        (b"[1, 2]", 422, "object"),
        (b'{"model": "minilm"}', 422, "text"),
        (b'{"model": "minilm", "text": 7}', 422, "text"),
        (b'{"model": "minilm", "text": "  "}', 422, "text"),
        (b'{"model": "minilm", "text": "a", "path": "/etc/passwd"}', 422, "path"),
        (b'{"model": "/etc/passwd", "text": "a"}', 422, "no model"),
        (b'{"model": "minilm", "text": "a\\ud800b"}', 422, "text"),
        (b'{"model": "minilm", "text": "' + b"a " * 110_000 + b'"}', 413, "longer"),
        (b'{"model": "minilm", "text": "' + b"a" * 10_000_000 + b'"}', 413, "larger"),
        (b"\xff\xfe\x00", 400, "not JSON"),
    ],
)
def test_bad_requests_get_a_readable_error(
    server: Server, body: bytes, status: int, message: str
) -> None:
    headers = {"content-type": "application/json"}
    response = httpx.post(server.url + "api/look", content=body, headers=headers, timeout=60)
    assert response.status_code == status
    assert message in response.json()["error"]


@pytest.mark.parametrize(
    ("pixels", "message"), [("/wAA", "reads texts"), ("/w==", "found 1"), ("!!!!", "base64")]
)
def test_a_picture_that_cannot_be_read_gets_a_readable_error(
    server: Server, pixels: str, message: str
) -> None:
    response = server.post("api/picture", model="minilm", width=1, height=1, pixels=pixels)
    assert response.status_code == 422
    assert message in response.json()["error"]


def test_only_the_name_of_a_picture_is_taken_for_a_picture(server: Server) -> None:
    response = look(server, "picture:0123456789abcdef")
    assert response.status_code == 422
    assert "drop it again" in response.json()["error"]
    assert look(server, "picture: a cat on a mat").status_code == 200


@pytest.mark.parametrize("text", ["a\0b", "\u202e\u200b x", "🙂" * 50, "<script>alert(1)</script>"])
def test_control_characters_emoji_and_markup_are_read_as_text(server: Server, text: str) -> None:
    assert look(server, text).status_code == 200


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("api/head", {"layer": 6, "head": 0}, "layer"),
        ("api/tile", {"layer": 0, "head": 0, "top": 9, "left": 0, "size": 8}, "found 9, 0"),
        ("api/link", {"queries": [0], "keys": [9]}, "found 9"),
        ("api/why", {"layer": 0, "head": 0, "query": 0, "key": 9}, "found 9"),
    ],
)
def test_a_head_or_a_token_that_does_not_exist_gets_a_readable_error(
    server: Server, path: str, arguments: dict[str, Any], message: str
) -> None:
    response = server.post(path, model="minilm", text="a", **arguments)
    assert response.status_code == 422
    assert message in response.json()["error"]


def test_foreign_hosts_and_origins_are_refused_and_no_other_file_is_served(server: Server) -> None:
    for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
        response = httpx.get(server.url + "api/config", headers=headers)
        assert response.status_code == 403, headers
    for path in ("assets/../app.py", "assets/%2e%2e/app.py", "assets//etc/passwd", "assets/x"):
        assert httpx.get(server.url + path).status_code == 404
    page = httpx.get(server.url)
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_slow_clients_and_broken_connections_leave_the_server_up(server: Server) -> None:
    address = urlsplit(server.url)
    assert address.port is not None
    head = f"POST /api/look HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: 500\r\n\r\n"
    for sent in (b"GET / HT", head.encode(), head.encode() + b'{"model"', b"\0" * 3000):
        with socket.create_connection(("127.0.0.1", address.port)) as client:
            client.sendall(sent)
    waiting = [socket.create_connection(("127.0.0.1", address.port)) for _ in range(50)]
    for client in waiting:
        client.sendall(head.encode())  # and nothing more
    assert look(server).status_code == 200
    for client in waiting:
        client.close()
    # a client that disconnects while a long text is read ends that work
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            server.url + "api/look",
            json={"model": "smollm2", "text": "a long story " * 1500},
            timeout=0.5,
        )
    assert look(server, "still up").status_code == 200


def test_a_public_address_needs_the_token_which_becomes_a_cookie() -> None:
    server = Server("--port", "0", "--no-open", "--host", "0.0.0.0", "--model", "minilm")
    try:
        address = urlsplit(server.url)
        base = f"http://127.0.0.1:{address.port}/"
        assert httpx.get(base).status_code == 401
        assert httpx.get(base + "?token=guess").status_code == 401
        assert httpx.post(base + "api/look", json={}).status_code == 401
        with httpx.Client(follow_redirects=False) as client:
            first = client.get(f"{base}?{address.query}")
            assert first.status_code == 303
            cookie = first.headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            assert client.get(base).status_code == 200
            foreign = client.get(base + "api/config", headers={"origin": "http://evil.example"})
            assert foreign.status_code == 403
    finally:
        server.stop()


def limelight(*options: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("limelight")), "explore", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_taken_port_and_a_missing_model_are_reported_in_one_line(
    server: Server, tmp_path: Path
) -> None:
    port = str(urlsplit(server.url).port)
    taken = limelight("--no-open", "--port", port)
    assert (taken.returncode, taken.stderr.count("\n")) == (2, 1)
    assert f"--port {port} is taken" in taken.stderr
    missing = limelight("--no-open", "--port", "0", "--model", str(tmp_path / "nothing"))
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "no such file or folder" in missing.stderr


def test_a_notebook_cell_shows_the_page(browser: Browser) -> None:
    rec = ll.look("I love apple phones")
    explorer = ll.explore(rec)
    try:
        assert explorer.url in explorer._repr_html_()
        config = httpx.get(explorer.url + "api/config").json()
        assert config["recording"] == {"model": "minilm", "text": rec.text}
        response = httpx.post(explorer.url + "api/look", json=config["recording"], timeout=60)
        weights = parse_frame(response.content)[1]["weights"][3, 1]
        torch.testing.assert_close(weights, rec.weights(3, 1))
        assert "frame-ancestors 'self'" in response.headers["content-security-policy"]
        # the model of the recording is installed, so it reads other texts too
        other = httpx.post(
            explorer.url + "api/look", json={"model": "minilm", "text": "Another."}, timeout=60
        )
        assert other.status_code == 200
        # as a notebook shows it: in a frame of a page from another port
        with _page_with(explorer._repr_html_()) as address:
            page = browser.new_page()
            page.set_default_timeout(60_000)
            page.goto(address)
            frame = page.frame_locator("iframe[title='Limelight explorer']")
            frame.locator(".story", has_text="looks at").first.wait_for()
            page.close()
    finally:
        explorer.stop()


@contextmanager
def _page_with(html: str) -> Iterator[str]:
    """The address of a page with this body."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html>" + html.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's output quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as notebook:
        threading.Thread(target=notebook.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{notebook.server_port}/"
        notebook.shutdown()
