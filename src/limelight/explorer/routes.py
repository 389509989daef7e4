"""The routes under /api/, one router for each group of panels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from limelight.explorer import schemas
from limelight.explorer.dispatch import Dispatcher
from limelight.explorer.model_store import PICTURE, names_picture
from limelight.explorer.python_code import python_lines
from limelight.explorer.responses import EVENTS, FILE, FRAME, JSON
from limelight.explorer.worker import Job

if TYPE_CHECKING:
    from limelight.seeing.recording.recording import Recording


def api_routers(dispatcher: Dispatcher) -> list[APIRouter]:
    """Every route that the page calls."""
    return [
        _reading_router(dispatcher),
        _weights_router(dispatcher),
        _long_text_router(dispatcher),
        _insight_router(dispatcher),
        _causal_router(dispatcher),
        _generation_router(dispatcher),
        _export_router(dispatcher),
    ]


def _reading_router(dispatcher: Dispatcher) -> APIRouter:
    """A text or a picture, as a model reads it."""
    router, store = APIRouter(prefix="/api"), dispatcher.store

    @router.post("/look", **FRAME)
    async def look(request: Request, body: schemas.TextRequest) -> Response:
        """What every head attends to in a text."""

        def make_frame(rec: Recording, _: Job) -> bytes:
            name = body.text if names_picture(body.text) else _panels().read_text(rec)
            return _panels().text_frame(rec, store.kind(body.model), name)

        return await dispatcher.frame(request, body, make_frame)

    @router.post("/picture", **FRAME)
    async def picture(request: Request, body: schemas.PictureRequest) -> Response:
        """What every head of a vision transformer attends to in a picture.

        The header's `text` names the picture in the requests that follow.
        """

        def work(job: Job) -> bytes:
            digest, pixels = _panels().pixels_of(body.pixels, body.height, body.width)
            rec = store.picture(body.model, digest, pixels, job)
            return _panels().text_frame(rec, store.kind(body.model), PICTURE + digest)

        return Response(await dispatcher.run(request, work), media_type=schemas.FRAME_TYPE)

    @router.post("/read", **EVENTS)
    async def read(body: schemas.TextRequest) -> Response:
        """Reads a long text and reports each layer; later requests about it need not wait."""
        return await dispatcher.events(
            lambda job: {"tokens": len(store.recording(body.model, body.text, job).tokens)}
        )

    return router


def _weights_router(dispatcher: Dispatcher) -> APIRouter:
    """The weights of one head, one link in all heads, and every step of a head."""
    router = APIRouter(prefix="/api")

    @router.post("/head", **FRAME)
    async def head(request: Request, body: schemas.WeightsRequest) -> Response:
        """All weights of one head, by tokens and by words: `weights` i j, `merged` u v."""

        def make_frame(rec: Recording, _: Job) -> bytes:
            return _panels().head_frame(rec, body.layer, body.head, valued=body.valued)

        return await dispatcher.frame(request, body, make_frame)

    @router.post("/link", **FRAME)
    async def link(request: Request, body: schemas.LinkRequest) -> Response:
        """How much some tokens attend to some others, in every head."""
        return await dispatcher.frame(
            request, body, lambda rec, job: _panels().link_frame(rec, body.queries, body.keys, job)
        )

    @router.post("/steps", **FRAME)
    async def steps(request: Request, body: schemas.HeadRequest) -> Response:
        """Each step of a head as a named array; the header has its formula and axes."""
        return await dispatcher.frame(
            request, body, lambda rec, _: _panels().steps_frame(rec, body.layer, body.head)
        )

    @router.post("/worked", **JSON)
    async def worked(request: Request, body: schemas.WorkedRequest) -> dict[str, Any]:
        """The worked example with edited tables, and the audit of its printed numbers."""
        edited = body.model_dump(exclude_none=True)
        return await dispatcher.run(request, lambda _: _panels().worked_example(edited))

    return router


def _long_text_router(dispatcher: Dispatcher) -> APIRouter:
    """A head of a long text: its map, exact tiles, and the links of a word."""
    router = APIRouter(prefix="/api")

    @router.post("/overview", **FRAME)
    async def overview(request: Request, body: schemas.HeadRequest) -> Response:
        """Of one head: the map, entropy and received along the axes, and its strongest links."""
        return await dispatcher.frame(
            request, body, lambda rec, _: _panels().overview_frame(rec, body.layer, body.head)
        )

    @router.post("/tile", **FRAME)
    async def tile(request: Request, body: schemas.TileRequest) -> Response:
        """Exact weights of a part of a long text."""

        def make_frame(rec: Recording, _: Job) -> bytes:
            corner = body.top, body.left
            return _panels().tile_frame(rec, body.layer, body.head, *corner, body.size, body.run)

        return await dispatcher.frame(request, body, make_frame)

    @router.post("/tokens", **FRAME)
    async def tokens(request: Request, body: schemas.TokensRequest) -> Response:
        """Which tokens attend to some tokens, and what those attend to."""

        def make_frame(rec: Recording, job: Job) -> bytes:
            return _panels().tokens_frame(rec, body.layer, body.head, body.tokens, job)

        return await dispatcher.frame(request, body, make_frame)

    return router


def _insight_router(dispatcher: Dispatcher) -> APIRouter:
    """Where a score comes from, how a word's meaning shifts, and what heads do."""
    router, store = APIRouter(prefix="/api"), dispatcher.store

    @router.post("/why", **JSON)
    async def why(request: Request, body: schemas.WhyRequest) -> dict[str, Any]:
        """The score of one link, split by the sources of its query and its key."""

        def work(job: Job) -> dict[str, Any]:
            model, rec = dispatcher.model_and_recording(body, job)
            link = body.layer, body.head, body.query, body.key
            return _panels().score_parts(model, rec, store.path(body.model), *link, job)

        return await dispatcher.run(request, work)

    @router.post("/meaning", **JSON)
    async def meaning(request: Request, body: schemas.MeaningRequest) -> dict[str, Any]:
        """A word's path through the layers, in each of some sentences."""

        def work(job: Job) -> dict[str, Any]:
            model, name = store.model(body.model), store.path(body.model)
            return _panels().word_path(
                model, name, body.word, body.sentences, body.groups, body.template, job
            )

        return await dispatcher.run(request, work)

    @router.post("/roles", **EVENTS)
    async def roles(body: schemas.RolesRequest) -> Response:
        """What every head does, over a corpus."""
        return await dispatcher.events(
            lambda job: _panels().roles(store.model(body.model), body.corpus, job)
        )

    return router


def _causal_router(dispatcher: Dispatcher) -> APIRouter:
    """What cutting links changes."""
    router = APIRouter(prefix="/api")

    @router.post("/effects", **EVENTS)
    async def effects(body: schemas.EffectsRequest) -> Response:
        """What cutting each link of a token changes, link by link."""

        def work(job: Job) -> dict[str, Any]:
            model, rec = dispatcher.model_and_recording(body, job)
            head = None if body.everywhere else (body.layer, body.head)
            return _panels().effects(model, rec, body.query, head, job)

        return await dispatcher.events(work)

    @router.post("/cut", **JSON)
    async def cut(request: Request, body: schemas.CutRequest) -> dict[str, Any]:
        """What changes when some links are cut together."""

        def work(job: Job) -> dict[str, Any]:
            model, rec = dispatcher.model_and_recording(body, job)
            return _panels().cut(model, rec, body.links, job, everywhere=body.everywhere)

        return await dispatcher.run(request, work)

    return router


def _generation_router(dispatcher: Dispatcher) -> APIRouter:
    """Text that a decoder generates."""
    router, store = APIRouter(prefix="/api"), dispatcher.store

    @router.post("/generate", **EVENTS)
    async def generate(body: schemas.GenerateRequest) -> Response:
        """A continuation, token by token."""

        def work(job: Job) -> dict[str, Any]:
            options = body.max_tokens, body.temperature, body.seed
            return _panels().continuation(
                store.model(body.model), body.text, body.after, *options, job
            )

        return await dispatcher.events(work)

    return router


def _export_router(dispatcher: Dispatcher) -> APIRouter:
    """What is shown, as files and as Python."""
    router, store = APIRouter(prefix="/api"), dispatcher.store

    @router.post("/html", **FILE)
    async def html(request: Request, body: schemas.HeadRequest) -> Response:
        """The page as one file that needs no server."""

        def make_file(rec: Recording) -> str:
            return _panels().html_file(rec, body.layer, body.head)

        media_type = "text/html; charset=utf-8"
        return await dispatcher.file(request, body, "attention.html", media_type, make_file)

    @router.post("/json", **FILE)
    async def json(request: Request, body: schemas.HeadRequest) -> Response:
        """The weights of one head with all their digits."""

        def make_file(rec: Recording) -> str:
            return _panels().json_file(rec, body.layer, body.head)

        media_type = "application/json"
        return await dispatcher.file(request, body, "attention.json", media_type, make_file)

    @router.post("/python", **JSON)
    async def python(body: schemas.PythonRequest) -> dict[str, str]:
        """The lines of Python that make the same picture."""
        name, row = store.path(body.model), (body.layer, body.head, body.token)
        return {"python": python_lines(name, body.text, *row, body.valued)}

    return router


def _panels():
    """The work of the panels, imported by the worker: PyTorch loads more slowly than the page."""
    from limelight.explorer import panels

    return panels
