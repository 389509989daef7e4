"""Between the addresses and the worker: brings back an answer while someone waits for it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from limelight.errors import LimelightError
from limelight.explorer import asks
from limelight.explorer.frames import MEDIA
from limelight.explorer.library import Library
from limelight.explorer.work import GoneError, Turn, Worker

if TYPE_CHECKING:
    from limelight.models.loading.pretrained import Model
    from limelight.seeing.recording.recording import Recording

Result = TypeVar("Result")

_SHORT = 4000
"""Characters that are read at once."""
_LOG = logging.getLogger("limelight.explorer")


class Desk:
    """Takes what is asked to the worker, and brings back the answer while someone waits for it."""

    def __init__(self, library: Library, worker: Worker) -> None:
        self.library, self.worker = library, worker

    def read(self, ask: asks.Ask, turn: Turn) -> tuple[Model, Recording]:
        """The model that is asked for, and its recording of the text."""
        return self.library.model(ask.model), self.library.recording(ask.model, ask.text, turn)

    async def frame(
        self, request: Request, ask: asks.Ask, answer: Callable[[Recording, Turn], bytes]
    ) -> Response:
        """The frame that `answer` makes of the recording of a text."""

        def work(turn: Turn) -> bytes:
            return answer(self.library.recording(ask.model, ask.text, turn), turn)

        return Response(await self.run(request, work, quick=self._soon(ask)), media_type=MEDIA)

    async def file(
        self,
        request: Request,
        ask: asks.Ask,
        name: str,
        kind: str,
        make: Callable[[Recording], str],
    ) -> Response:
        """A file to keep, made of the recording of a text."""

        def work(turn: Turn) -> str:
            return make(self.library.recording(ask.model, ask.text, turn))

        headers = {"content-disposition": f'attachment; filename="{name}"'}
        text = await self.run(request, work, quick=self._soon(ask))
        return Response(text, media_type=kind, headers=headers)

    def _soon(self, ask: asks.Ask) -> bool:
        """Whether the answer takes no time: while a long text is read, others go first."""
        return len(ask.text) <= _SHORT or self.library.has(ask.model, ask.text)

    async def run(
        self, request: Request, work: Callable[[Turn], Result], *, quick: bool = True
    ) -> Result:
        """What the worker makes; the work ends when the client leaves."""
        job = asyncio.ensure_future(
            self.worker.run(work, quick=quick, seconds=300.0 if quick else 900.0)
        )
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({job, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not job.done():
                raise GoneError
            return job.result()
        finally:
            job.cancel()
            gone.cancel()

    async def events(self, work: Callable[[Turn], Any]) -> Response:
        """Events of long work; the first is awaited, so that an error keeps its status."""
        stream = self.worker.stream(work)
        first = await anext(stream)
        return StreamingResponse(_told(first, stream), media_type="text/event-stream")


async def _told(first: dict[str, Any], stream: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    yield _event(first)
    try:
        async for event in stream:
            yield _event(event)
    except LimelightError as error:
        yield _event({"error": str(error)})
    except GoneError:
        return
    except Exception:
        _LOG.exception("long work failed")
        yield _event({"error": "something went wrong here: the log says what"})


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, allow_nan=False)}\n\n"


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
