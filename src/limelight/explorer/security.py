"""Middleware before the routes: host, origin, token, and the size and speed of bodies.

By default the server listens on this machine only. Any other address needs a token, which comes in
the URL once and stays as a cookie. Other sites cannot send requests in the user's name: a foreign
Host or Origin is refused. A body that is too large or too slow is refused while it arrives.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "limelight"
MAX_BYTES = 1 << 20
"""Of a request's body."""
MAX_DRAINED = 64 << 20
"""Bytes of an oversized body that are read and discarded, so that a client that is still sending
gets the response rather than a reset connection."""
MAX_SECONDS = 20.0
"""For a request's body to arrive."""

LOCAL = ("127.0.0.1", "localhost", "[::1]")

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors {ancestors}"
)


class SecurityMiddleware:
    """Refuses forbidden requests; every response carries the page's security headers."""

    def __init__(self, app: ASGIApp, *, token: str | None = None, embeddable: bool = False) -> None:
        self._app, self._token = app, token
        local = "'self' http://127.0.0.1:* http://localhost:*"
        policy = _POLICY.format(ancestors=local if embeddable else "'none'")
        self._headers = [
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"cross-origin-opener-policy", b"same-origin"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        send = self._with_headers(send)
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if self._token is None and _host_name(host) not in LOCAL:
            await _refuse(send, 403, "this server serves 127.0.0.1 and localhost only")
            return
        if origin is not None and urlsplit(origin).netloc != host:
            await _refuse(send, 403, "requests from other sites are refused")
            return
        if self._token is not None and not self._authenticated(headers):
            await self._sign_in(scope, send)
            return
        length = headers.get(b"content-length", "0")
        if length.isdecimal() and int(length) > MAX_DRAINED:
            await _refuse(send, 413, _too_large())
            return
        body = await _whole_body(receive)
        if isinstance(body, int):
            slow = f"the request took longer than {MAX_SECONDS:.0f} s to arrive"
            await _refuse(send, body, _too_large() if body == 413 else slow)
            return
        if body is not None:
            await self._app(scope, _replay(body, receive), send)

    def _authenticated(self, headers: dict[bytes, str]) -> bool:
        try:
            cookie = SimpleCookie(headers.get(b"cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and self._token_matches(cookie.value)

    def _token_matches(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), (self._token or "").encode())

    async def _sign_in(self, scope: Scope, send: Send) -> None:
        """Move the token from the URL into a cookie."""
        tokens = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])
        if scope["method"] != "GET" or scope["path"] != "/" or not self._token_matches(tokens[0]):
            await _refuse(send, 401, "open the address that `limelight explore` printed")
            return
        cookie = f"{COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def _with_headers(self, send: Send) -> Send:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
            await send(message)

        return with_headers


def _host_name(host: str) -> str:
    """A Host header without its port."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def _too_large() -> str:
    return f"the request is larger than {MAX_BYTES // 1024:,} kB: use a shorter text"


async def _whole_body(receive: Receive) -> bytes | int | None:
    """The body; the status to refuse it with; or None if the client has left."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(MAX_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                part = message.get("body", b"")
                size += len(part)
                if size <= MAX_BYTES:
                    parts.append(part)
                if size > MAX_DRAINED or not message.get("more_body", False):
                    return 413 if size > MAX_BYTES else b"".join(parts)
    except TimeoutError:
        return 408


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body read here, then what follows, such as the disconnect."""
    first = True

    async def replay() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


async def _refuse(send: Send, status: int, message: str) -> None:
    body = json.dumps({"error": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status in (408, 413):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
