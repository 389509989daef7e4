"""Starts the server: binds the address and opens the browser."""

from __future__ import annotations

import errno
import secrets
import socket
import threading
import webbrowser
from typing import TYPE_CHECKING

from limelight.errors import OptionError, UnavailableError

if TYPE_CHECKING:
    import uvicorn

    from limelight.explorer.model_store import ModelStore

HOST = "127.0.0.1"
PORT = 8765


class ExplorerServer:
    """A server and the address of its page."""

    def __init__(self, server: uvicorn.Server, sock: socket.socket, url: str) -> None:
        self.url = url
        self._server, self._socket = server, sock
        self._thread: threading.Thread | None = None

    def run(self, *, open_browser: bool) -> None:
        """Serve until interrupted."""
        if open_browser:
            timer = threading.Timer(0.3, _open_browser, (self.url,))
            timer.daemon = True
            timer.start()
        self._server.run([self._socket])

    def start(self) -> ExplorerServer:
        """Serve from a thread of its own, for a notebook."""
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="limelight-explorer", daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the server and wait for the thread of `start`."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=10)


def serve(
    store: ModelStore, *, host: str = HOST, port: int = PORT, embeddable: bool = False
) -> ExplorerServer:
    """A server for the store, bound but not yet running.

    Args:
        store: the models and recordings.
        host: the address to bind; any but this machine's own is guarded by a token in the URL.
        port: 0 takes any free port.
        embeddable: whether a notebook may show the page in a frame.
    """
    try:
        import uvicorn

        from limelight.explorer.app import create_app
    except ImportError as error:
        raise UnavailableError(
            f"the explorer needs {error.name}: pip install 'limelight[explorer]'"
        ) from None

    sock = _bind(host, port)
    bound_port = sock.getsockname()[1]
    token = None if host in ("127.0.0.1", "localhost", "::1") else secrets.token_urlsafe(24)
    app = create_app(store, token=token, embeddable=embeddable)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
    )
    url_host = f"[{host}]" if ":" in host else host
    url = f"http://{url_host}:{bound_port}/" + (f"?token={token}" if token else "")
    return ExplorerServer(uvicorn.Server(config), sock, url)


def _bind(host: str, port: int) -> socket.socket:
    if not host:  # a socket would take it as every address of the machine
        raise OptionError("--host must be an address, such as 127.0.0.1, found ''")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(1024)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise OptionError(
                f"--port {port} is taken: choose another, or 0 for any free port"
            ) from None
        raise OptionError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    except OverflowError:
        sock.close()
        raise OptionError(f"--port must be 0 to 65535, found {port}") from None
    return sock


def _open_browser(url: str) -> None:
    if not webbrowser.open(url):
        print("No browser could be opened: open the address above in one.", flush=True)
