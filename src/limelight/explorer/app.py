"""The ASGI application: routes, and errors as JSON responses."""

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
from limelight.explorer.dispatch import Dispatcher
from limelight.explorer.model_store import ModelStore
from limelight.explorer.page_config import page_config
from limelight.explorer.routes import api_routers
from limelight.explorer.schemas import TextTooLongError
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


def create_app(store: ModelStore, *, token: str | None = None, embeddable: bool = False) -> ASGIApp:
    """The application over a store of models.

    Args:
        store: the models and recordings.
        token: what a browser must present with every request; None for a server that only this
            machine can reach.
        embeddable: whether a notebook on this machine may show the page in a frame.
    """
    worker = Worker()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        # The model loads while the page does, so that the first text does not wait for it.
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
        # Files are read at start: no path from a request is ever opened.
        if path not in files:
            raise HTTPException(404, "there is no such file")
        return files[path].response()

    @app.get("/api/config")
    async def config() -> dict[str, Any]:
        """The models, the examples, the limits and the colours."""
        return page_config(store)

    for router in api_routers(Dispatcher(store, worker)):
        app.include_router(router)
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
                limit = problem["ctx"]["max_length"]
                return error_response(413, f"{_field(problem)} is longer than {limit:,} characters")
        return error_response(422, "; ".join(map(_problem_message, problems[:4])))

    @app.exception_handler(LimelightError)
    async def expected(_: Request, error: Exception) -> JSONResponse:
        statuses: dict[type[Exception], int] = {
            TextTooLongError: 413,
            QueueFullError: 429,
            JobTimeoutError: 503,
            UnavailableError: 503,
        }
        return error_response(statuses.get(type(error), 422), str(error))

    @app.exception_handler(ClientDisconnectedError)
    async def disconnected(_: Request, __: Exception) -> Response:
        return Response(status_code=499)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        # FastAPI raises 400 for an empty body.
        message = "the body is not JSON" if error.status_code == 400 else str(error.detail)
        return JSONResponse({"error": message}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, __: Exception) -> JSONResponse:
        return error_response(500, "something went wrong here: see the server's log")


def _field(problem: dict[str, Any]) -> str:
    return ".".join(str(part) for part in problem["loc"] if part != "body")


def _problem_message(problem: dict[str, Any]) -> str:
    field = _field(problem)
    return f"{field}: {problem['msg']}" if field else str(problem["msg"])
