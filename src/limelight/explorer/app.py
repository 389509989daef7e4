"""The server's application: its routes, and how errors are answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from limelight.errors import LimelightError, UnavailableError
from limelight.explorer import schemas
from limelight.explorer.dispatch import Dispatcher
from limelight.explorer.model_store import ModelStore
from limelight.explorer.page_config import page_config
from limelight.explorer.routes import add_routes
from limelight.explorer.security import SecurityMiddleware
from limelight.explorer.static import asset_files
from limelight.explorer.worker import (
    ClientDisconnectedError,
    JobTimeoutError,
    QueueFullError,
    Worker,
)
from limelight.version import __version__

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": why,
        "content": {
            "application/json": {
                "schema": {"type": "object", "properties": {"error": {"type": "string"}}}
            }
        },
    }
    for status, why in {
        400: "The body is not JSON.",
        413: "The text is too long.",
        422: "The request names something that does not exist.",
        429: "Too many requests are waiting.",
        500: "Something went wrong here.",
        503: "The work took too long, or a package is missing.",
    }.items()
}
_FRAME: dict[int | str, dict[str, Any]] = {
    **_ERRORS,
    200: {
        "description": "A frame: see `frames`.",
        "content": {schemas.FRAME: {"schema": {"type": "string", "format": "binary"}}},
    },
}
_EVENTS: dict[int | str, dict[str, Any]] = {
    **_ERRORS,
    200: {
        "description": "Server-sent events.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
}


def create_app(store: ModelStore, *, token: str | None = None, embeddable: bool = False) -> ASGIApp:
    """The application over a store of models.

    Args:
        store: the models and recordings.
        token: what a browser must show before anything is answered; None on this machine only.
        embeddable: whether a notebook on this machine may show the page in a frame.
    """
    worker = Worker()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        # The first text need not wait for its model: it loads while the page does.
        loading = asyncio.ensure_future(worker.run(lambda _: store.warm()))
        yield
        loading.cancel()
        await asyncio.to_thread(worker.close)

    app = FastAPI(
        title="Limelight explorer",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    files = asset_files()

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return files["index.html"].response()

    @app.get("/assets/{path:path}", include_in_schema=False)
    async def asset(path: str) -> Response:
        # Looked up among what was read at start: no path from a request is ever opened.
        if path not in files:
            raise HTTPException(404, "there is no such file")
        return files[path].response()

    @app.get("/api/config")
    async def config() -> dict[str, Any]:
        """The models, the examples, the limits and the colours."""
        return page_config(store)

    add_routes(app, Dispatcher(store, worker), _ERRORS, _FRAME, _EVENTS)
    _add_error_handlers(app)
    return SecurityMiddleware(app, token=token, embeddable=embeddable)


def _add_error_handlers(app: FastAPI) -> None:
    def error_response(status: int, message: str) -> JSONResponse:
        return JSONResponse({"error": message}, status)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        problems = error.errors()
        if any(problem["type"] == "json_invalid" for problem in problems):
            return error_response(400, "the body is not JSON")
        for problem in problems:
            if problem["type"] == "string_too_long":
                most = problem["ctx"]["max_length"]
                return error_response(413, f"{_field(problem)} is longer than {most:,} characters")
        return error_response(422, "; ".join(map(_problem, problems[:4])))

    @app.exception_handler(LimelightError)
    async def known(_: Request, error: Exception) -> JSONResponse:
        kinds: dict[type[Exception], int] = {
            schemas.TextTooLongError: 413,
            QueueFullError: 429,
            JobTimeoutError: 503,
            UnavailableError: 503,
        }
        return error_response(kinds.get(type(error), 422), str(error))

    @app.exception_handler(ClientDisconnectedError)
    async def disconnected(_: Request, __: Exception) -> Response:
        return Response(status_code=499)

    @app.exception_handler(HTTPException)
    async def plain(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        # FastAPI says 400 of a body that is empty.
        message = "the body is not JSON" if error.status_code == 400 else str(error.detail)
        return JSONResponse({"error": message}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def crashed(_: Request, __: Exception) -> JSONResponse:
        return error_response(500, "something went wrong here: the server's log says what")


def _field(problem: dict[str, Any]) -> str:
    return ".".join(str(part) for part in problem["loc"] if part != "body")


def _problem(problem: dict[str, Any]) -> str:
    where = _field(problem)
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])
