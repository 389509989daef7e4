"""What may go wrong, and what happens then: always an answer, and the server stays up."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest
import torch

import limelight as ll
from explorer.conftest import SENTENCE, Server
from limelight.explorer.frames import parse_frame

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def ask(server: Server, **changes: object) -> httpx.Response:
    return server.ask("api/look", **{"model": "minilm", "text": SENTENCE, **changes})


def test_the_weights_are_those_of_the_library(server: Server) -> None:
    head, arrays = parse_frame(ask(server).content)
    rec = ll.look(SENTENCE)
    assert head["queries"]["labels"] == [token.text for token in rec.tokens]
    expected = torch.stack([seen.dense()[0] for seen in rec.layers])
    torch.testing.assert_close(arrays["weights"], expected, rtol=0, atol=1e-6)
    link = server.ask("api/link", model="minilm", text=SENTENCE, queries=[8, 10], keys=[2, 5])
    found = expected[:, :, [8, 10]][..., [2, 5]].sum(-1).mean(-1)
    torch.testing.assert_close(parse_frame(link.content)[1]["weights"], found)


def test_a_tile_is_a_part_of_the_weights_and_a_cell_the_greatest_under_it(server: Server) -> None:
    text = " ".join([SENTENCE] * 20)
    rec = ll.look(text)
    weights = rec.weights(3, 1)
    where = {"model": "minilm", "text": text, "layer": 3, "head": 1}
    tile = parse_frame(server.ask("api/tile", **where, top=40, left=96, size=32).content)[1]
    torch.testing.assert_close(tile["weights"], weights[40:72, 96:128], rtol=0, atol=1e-6)
    pooled = parse_frame(server.ask("api/tile", **where, top=0, left=0, size=8, run=4).content)[1]
    cells = weights[:32, :32].unflatten(1, (8, 4)).unflatten(0, (8, 4)).amax((1, 3))
    torch.testing.assert_close(pooled["weights"], cells, rtol=0, atol=1e-6)
    whole = parse_frame(server.ask("api/overview", **where).content)[1]
    torch.testing.assert_close(whole["received"], weights.sum(0), rtol=0, atol=1e-4)
    looks = parse_frame(server.ask("api/tokens", **where, tokens=[2, 18]).content)[1]
    torch.testing.assert_close(looks["from"], weights[:, [2, 18]].sum(1), rtol=0, atol=1e-5)


def test_all_places_of_a_word_are_searched_however_many(server: Server) -> None:
    text = "the cat " * 250
    rec = ll.look(text)
    the, cat = ([k for k, t in enumerate(rec.tokens) if t.text == w] for w in ("the", "cat"))
    assert len(the) == 250
    places = [*the, *cat]
    weights = torch.stack([seen.dense()[0] for seen in rec.layers])
    link = server.ask("api/link", model="minilm", text=text, queries=places, keys=cat)
    found = parse_frame(link.content)[1]["weights"]
    expected = weights[:, :, places][..., cat].sum(-1).mean(-1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    where = {"model": "minilm", "text": text, "layer": 3, "head": 1}
    looks = parse_frame(server.ask("api/tokens", **where, tokens=places).content)[1]
    torch.testing.assert_close(looks["from"], weights[3, 1][:, places].sum(1), rtol=0, atol=1e-4)
    torch.testing.assert_close(looks["to"], weights[3, 1][places].sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("body", "status", "says"),
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
    server: Server, body: bytes, status: int, says: str
) -> None:
    headers = {"content-type": "application/json"}
    answer = httpx.post(server.url + "api/look", content=body, headers=headers, timeout=60)
    assert answer.status_code == status
    assert says in answer.json()["error"]


def test_a_picture_comes_as_pixels_and_nothing_is_decoded(server: Server) -> None:
    for pixels, says in (("/wAA", "reads texts"), ("/w==", "found 1"), ("!!!!", "base64")):
        answer = server.ask("api/picture", model="minilm", width=1, height=1, pixels=pixels)
        assert answer.status_code == 422
        assert says in answer.json()["error"]
    gone = server.ask("api/look", model="minilm", text="picture:0123456789abcdef")
    assert (gone.status_code, "drop it again" in gone.json()["error"]) == (422, True)
    assert ask(server, text="picture: a cat on a mat").status_code == 200


def test_nul_bytes_and_strange_letters_are_texts_too(server: Server) -> None:
    for text in ("a\0b", "\u202e\u200b x", "🙂" * 50, "<script>alert(1)</script>"):
        assert ask(server, text=text).status_code == 200
    assert server.ask("api/head", model="minilm", text="a", layer=6, head=0).status_code == 422
    assert server.ask("api/tile", model="minilm", text="a", layer=0, head=0, top=9, left=0,
                      size=8).status_code == 422  # fmt: skip


def test_foreign_hosts_and_origins_are_refused_and_files_are_not_opened(server: Server) -> None:
    for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
        answer = httpx.get(server.url + "api/config", headers=headers)
        assert answer.status_code == 403, headers
    for path in ("assets/../app.py", "assets/%2e%2e/app.py", "assets//etc/passwd", "assets/x"):
        assert httpx.get(server.url + path).status_code == 404
    page = httpx.get(server.url)
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_slow_clients_and_abrupt_ends_leave_the_server_up(server: Server) -> None:
    address = urlsplit(server.url)
    assert address.port is not None
    head = f"POST /api/look HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: 500\r\n\r\n"
    for sent in (b"GET / HT", head.encode(), head.encode() + b'{"model"', b"\0" * 3000):
        with socket.create_connection(("127.0.0.1", address.port)) as client:
            client.sendall(sent)
    waiting = [socket.create_connection(("127.0.0.1", address.port)) for _ in range(50)]
    for client in waiting:
        client.sendall(head.encode())  # and nothing more
    assert ask(server).status_code == 200
    for client in waiting:
        client.close()
    # who leaves while a long text is read ends that work
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            server.url + "api/look",
            json={"model": "smollm2", "text": "a long story " * 1500},
            timeout=0.5,
        )
    assert ask(server, text="still up").status_code == 200


def test_another_address_needs_the_token_which_becomes_a_cookie() -> None:
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


def test_what_is_in_the_way_is_said_in_a_line(server: Server, tmp_path: Path) -> None:
    port = str(urlsplit(server.url).port)
    taken = limelight("--no-open", "--port", port)
    assert (taken.returncode, taken.stderr.count("\n")) == (2, 1)
    assert f"--port {port} is taken" in taken.stderr
    missing = limelight("--no-open", "--port", "0", "--model", str(tmp_path / "nothing"))
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "no such file or folder" in missing.stderr


def test_in_a_notebook_the_page_stands_in_a_cell(browser: Browser) -> None:
    rec = ll.look("I love apple phones")
    explorer = ll.explore(rec)
    try:
        assert explorer.url in explorer._repr_html_()
        start = httpx.get(explorer.url + "api/config").json()
        assert start["recording"] == {"model": "minilm", "text": rec.text}
        answer = httpx.post(explorer.url + "api/look", json=start["recording"], timeout=60)
        found = parse_frame(answer.content)[1]["weights"][3, 1]
        torch.testing.assert_close(found, rec.weights(3, 1))
        assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]
        # another text, by the model that made the recording
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
    """The address of a page that holds this."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html>" + html.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as notebook:
        threading.Thread(target=notebook.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{notebook.server_port}/"
        notebook.shutdown()
