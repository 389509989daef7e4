"""The routes under /api/, a panel at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from limelight.explorer import schemas
from limelight.explorer.dispatch import Dispatcher
from limelight.explorer.model_store import PICTURE, names_picture
from limelight.explorer.python_code import python_lines
from limelight.explorer.worker import Job

if TYPE_CHECKING:
    from limelight.seeing.recording.recording import Recording

Responses = dict[int | str, Any]
"""What the OpenAPI document says of the answers, by status."""


def add_routes(
    app: FastAPI, dispatcher: Dispatcher, errors: Responses, frames: Responses, events: Responses
) -> None:
    """Every route that the page calls."""
    store = dispatcher.store
    post_json = partial(app.post, responses=errors)
    post_file = partial(app.post, responses=errors, response_class=Response)
    post_frame = partial(app.post, responses=frames, response_class=Response)
    post_events = partial(app.post, responses=events, response_class=Response)

    @post_frame("/api/look")
    async def look(request: Request, body: schemas.TextRequest) -> Response:
        """What every head attends to in a text."""

        def answer(rec: Recording, _: Job) -> bytes:
            name = body.text if names_picture(body.text) else _panels().read_text(rec)
            return _panels().text_frame(rec, store.kind(body.model), name)

        return await dispatcher.frame(request, body, answer)

    @post_frame("/api/picture")
    async def picture(request: Request, body: schemas.PictureRequest) -> Response:
        """What every head of a vision transformer attends to in a picture.

        The header's `text` names the picture in the requests that follow.
        """

        def work(job: Job) -> bytes:
            digest, pixels = _panels().pixels_of(body.pixels, body.height, body.width)
            rec = store.picture(body.model, digest, pixels, job)
            return _panels().text_frame(rec, store.kind(body.model), PICTURE + digest)

        return Response(await dispatcher.run(request, work), media_type=schemas.FRAME)

    @post_events("/api/read")
    async def read(body: schemas.TextRequest) -> Response:
        """Reads a long text, layer by layer; later requests about it are answered at once."""
        return await dispatcher.events(
            lambda job: {"tokens": len(store.recording(body.model, body.text, job).tokens)}
        )

    @post_frame("/api/head")
    async def head(request: Request, body: schemas.WeightsRequest) -> Response:
        """All weights of one head, by tokens and by words: `weights` i j, `merged` u v."""

        def answer(rec: Recording, _: Job) -> bytes:
            return _panels().head_frame(rec, body.layer, body.head, valued=body.valued)

        return await dispatcher.frame(request, body, answer)

    @post_frame("/api/steps")
    async def steps(request: Request, body: schemas.HeadRequest) -> Response:
        """Each step of a head as an array by its name; the header says formula and axes of each."""
        return await dispatcher.frame(
            request, body, lambda rec, _: _panels().steps_frame(rec, body.layer, body.head)
        )

    @post_frame("/api/overview")
    async def overview(request: Request, body: schemas.HeadRequest) -> Response:
        """Of one head: the map, entropy and received along the axes, and its strongest links."""
        return await dispatcher.frame(
            request, body, lambda rec, _: _panels().overview_frame(rec, body.layer, body.head)
        )

    @post_frame("/api/link")
    async def link(request: Request, body: schemas.LinkRequest) -> Response:
        """What some tokens give to some others, in every head."""
        return await dispatcher.frame(
            request, body, lambda rec, job: _panels().link_frame(rec, body.queries, body.keys, job)
        )

    @post_json("/api/why")
    async def why(request: Request, body: schemas.WhyRequest) -> dict[str, Any]:
        """The score of one link, split by where its parts came from."""

        def work(job: Job) -> dict[str, Any]:
            model, rec = dispatcher.read(body, job)
            link = body.layer, body.head, body.query, body.key
            return _panels().score_parts(model, rec, store.path(body.model), *link, job)

        return await dispatcher.run(request, work)

    @post_json("/api/meaning")
    async def meaning(request: Request, body: schemas.MeaningRequest) -> dict[str, Any]:
        """A word's path through the layers, in each of some sentences."""

        def work(job: Job) -> dict[str, Any]:
            model, name = store.model(body.model), store.path(body.model)
            return _panels().word_path(
                model, name, body.word, body.sentences, body.groups, body.template, job
            )

        return await dispatcher.run(request, work)

    @post_json("/api/worked")
    async def worked(request: Request, body: schemas.WorkedRequest) -> dict[str, Any]:
        """The worked example, edited cell by cell, and the audit of the printed numbers."""
        edited = body.model_dump(exclude_none=True)
        return await dispatcher.run(request, lambda _: _panels().worked_example(edited))

    @post_frame("/api/tile")
    async def tile(request: Request, body: schemas.TileRequest) -> Response:
        """Exact weights of a part of a long text."""

        def answer(rec: Recording, _: Job) -> bytes:
            corner = body.top, body.left
            return _panels().tile_frame(rec, body.layer, body.head, *corner, body.size, body.run)

        return await dispatcher.frame(request, body, answer)

    @post_frame("/api/tokens")
    async def tokens(request: Request, body: schemas.TokensRequest) -> Response:
        """Which tokens attend to some tokens, and what those attend to."""

        def answer(rec: Recording, job: Job) -> bytes:
            return _panels().tokens_frame(rec, body.layer, body.head, body.tokens, job)

        return await dispatcher.frame(request, body, answer)

    @post_events("/api/generate")
    async def generate(body: schemas.GenerateRequest) -> Response:
        """A continuation, token by token."""

        def work(job: Job) -> dict[str, Any]:
            model, options = store.model(body.model), (body.max_tokens, body.temperature, body.seed)
            return _panels().continuation(model, body.text, body.after, *options, job)

        return await dispatcher.events(work)

    @post_file("/api/html")
    async def html(request: Request, body: schemas.HeadRequest) -> Response:
        """The page as one file that needs no server."""

        def make(rec: Recording) -> str:
            return _panels().html_file(rec, body.layer, body.head)

        kind = "text/html; charset=utf-8"
        return await dispatcher.file(request, body, "attention.html", kind, make)

    @post_file("/api/json")
    async def json(request: Request, body: schemas.HeadRequest) -> Response:
        """The weights of one head with all their digits."""

        def make(rec: Recording) -> str:
            return _panels().json_file(rec, body.layer, body.head)

        return await dispatcher.file(request, body, "attention.json", "application/json", make)

    @post_json("/api/python")
    async def python(body: schemas.PythonRequest) -> dict[str, str]:
        """The lines of Python that make the same picture."""
        name, row = store.path(body.model), (body.layer, body.head, body.token)
        return {"python": python_lines(name, body.text, *row, body.valued)}

    @post_events("/api/effects")
    async def effects(body: schemas.EffectsRequest) -> Response:
        """What cutting each link of a token causes, link by link."""

        def work(job: Job) -> dict[str, Any]:
            head = None if body.everywhere else (body.layer, body.head)
            return _panels().effects(*dispatcher.read(body, job), body.query, head, job)

        return await dispatcher.events(work)

    @post_json("/api/cut")
    async def cut(request: Request, body: schemas.CutRequest) -> dict[str, Any]:
        """What changes when some links are cut together."""

        def work(job: Job) -> dict[str, Any]:
            model, rec = dispatcher.read(body, job)
            return _panels().cut(model, rec, body.links, job, everywhere=body.everywhere)

        return await dispatcher.run(request, work)

    @post_events("/api/roles")
    async def roles(body: schemas.RolesRequest) -> Response:
        """What every head does, over a corpus."""
        return await dispatcher.events(
            lambda job: _panels().roles(store.model(body.model), body.corpus, job)
        )


def _panels():
    """What computes the panels: PyTorch takes longer to load than the page, so the worker does."""
    from limelight.explorer import panels

    return panels
