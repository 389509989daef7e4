"""From a request to the worker and back: the response, or a stream of events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from limelight.errors import LimelightError
from limelight.explorer import schemas
from limelight.explorer.model_store import ModelStore
from limelight.explorer.worker import ClientDisconnectedError, Job, Worker

if TYPE_CHECKING:
    from limelight.models.loading.pretrained import Model
    from limelight.seeing.recording.recording import Recording

Result = TypeVar("Result")

_SHORT = 4000
"""Characters that are read at once."""
_LOG = logging.getLogger("limelight.explorer")


class Dispatcher:
    """Runs the work of requests on the worker; a client that disconnects cancels its work."""

    def __init__(self, store: ModelStore, worker: Worker) -> None:
        self.store, self.worker = store, worker

    def read(self, body: schemas.TextRequest, job: Job) -> tuple[Model, Recording]:
        """The model by name, and its recording of the text."""
        return self.store.model(body.model), self.store.recording(body.model, body.text, job)

    async def frame(
        self, request: Request, body: schemas.TextRequest, answer: Callable[[Recording, Job], bytes]
    ) -> Response:
        """The frame that `answer` makes of the recording of a text."""

        def work(job: Job) -> bytes:
            return answer(self.store.recording(body.model, body.text, job), job)

        return Response(
            await self.run(request, work, interactive=self._interactive(body)),
            media_type=schemas.FRAME,
        )

    async def file(
        self,
        request: Request,
        body: schemas.TextRequest,
        name: str,
        kind: str,
        make: Callable[[Recording], str],
    ) -> Response:
        """A file to keep, made of the recording of a text."""

        def work(job: Job) -> str:
            return make(self.store.recording(body.model, body.text, job))

        headers = {"content-disposition": f'attachment; filename="{name}"'}
        text = await self.run(request, work, interactive=self._interactive(body))
        return Response(text, media_type=kind, headers=headers)

    def _interactive(self, body: schemas.TextRequest) -> bool:
        """Whether the work is short: a long text lets other requests go first."""
        return len(body.text) <= _SHORT or self.store.has(body.model, body.text)

    async def run(
        self, request: Request, work: Callable[[Job], Result], *, interactive: bool = True
    ) -> Result:
        """What the worker makes; the work ends when the client leaves."""
        result = asyncio.ensure_future(
            self.worker.run(work, interactive=interactive, seconds=300.0 if interactive else 900.0)
        )
        disconnected = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({result, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise ClientDisconnectedError
            return result.result()
        finally:
            result.cancel()
            disconnected.cancel()

    async def events(self, work: Callable[[Job], Any]) -> Response:
        """Events of long work; the first is awaited, so that an error keeps its status."""
        stream = self.worker.stream(work)
        first = await anext(stream)
        return StreamingResponse(_event_stream(first, stream), media_type="text/event-stream")


async def _event_stream(
    first: dict[str, Any], stream: AsyncIterator[dict[str, Any]]
) -> AsyncIterator[str]:
    yield _event(first)
    try:
        async for event in stream:
            yield _event(event)
    except LimelightError as error:
        yield _event({"error": str(error)})
    except ClientDisconnectedError:
        return
    except Exception:
        _LOG.exception("long work failed")
        yield _event({"error": "something went wrong here: the log says what"})


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, allow_nan=False)}\n\n"


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
