"""One thread that does all model work: interactive work before long work, oldest first.

A job is a function of its `Turn`. Long jobs call `turn.pause()` now and then: it lets interactive
work go first, and ends the job once nobody waits for it. Each job runs in the context of whoever
asked, so that no interceptor of one reaches another.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from limelight.errors import LimelightError

Result = TypeVar("Result")

MOST_QUICK = 1024
"""Interactive jobs that may wait."""
MOST_LONG = 8
"""Long jobs that may wait."""


class BusyError(LimelightError):
    """More work is waiting than the queue holds."""


class LateError(LimelightError):
    """The work did not begin, or did not end, in the time it may take."""


class GoneError(Exception):
    """Whoever asked has left: the job ends."""


class Turn:
    """What a job is handed: how to let others go first, and how to report."""

    def __init__(self, worker: Worker, job: _Job) -> None:
        self._worker, self._job = worker, job

    def pause(self) -> None:
        """Let interactive work go first; raise where nobody waits for this job any more."""
        if self._job.quick is False:
            self._worker.serve_quick()
        if self._job.gone.is_set():
            raise GoneError
        if time.monotonic() > self._job.until:
            raise LateError(f"this took longer than {self._job.seconds:.0f} s: use a shorter text")

    def report(self, event: dict[str, Any]) -> None:
        """Tell whoever waits how far the work is."""
        self._job.report(event)


@dataclass
class _Job:
    work: Callable[[Turn], Any]
    quick: bool
    seconds: float
    done: Callable[[Any, BaseException | None], None]
    report: Callable[[dict[str, Any]], None]
    gone: threading.Event = field(default_factory=threading.Event)
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    until: float = 0.0

    def __post_init__(self) -> None:
        self.until = time.monotonic() + self.seconds


class Worker:
    """The thread and its two queues."""

    def __init__(self, most_quick: int = MOST_QUICK, most_long: int = MOST_LONG) -> None:
        self._most = {True: most_quick, False: most_long}
        self._waiting: dict[bool, deque[_Job]] = {True: deque(), False: deque()}
        self._ready = threading.Condition()
        self._closed = False
        self._running: list[_Job] = []
        self._thread = threading.Thread(target=self._loop, name="limelight-work", daemon=True)
        self._thread.start()

    def close(self, seconds: float = 10.0) -> None:
        """Take no more work; what waits is dropped, what runs ends at its next pause.

        The thread is waited for: an interpreter that ends while it computes ends in an abort.
        """
        with self._ready:
            self._closed = True
            for job in (*self._waiting[True], *self._waiting[False], *self._running):
                job.gone.set()
            self._ready.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    async def run(
        self, work: Callable[[Turn], Result], *, quick: bool = True, seconds: float = 60.0
    ) -> Result:
        """Do the work and give its result; cancelling the wait cancels the work."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def done(result: Any, error: BaseException | None) -> None:
            def settle() -> None:
                if future.done():
                    return
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(result)

            _call_soon(loop, settle)

        job = _Job(work, quick, seconds, done, lambda _: None)
        self._put(job)
        try:
            return await future
        finally:
            job.gone.set()

    async def stream(
        self, work: Callable[[Turn], Any], *, seconds: float = 600.0
    ) -> AsyncIterator[dict[str, Any]]:
        """Do long work and give what it reports, then its result under `done`."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[dict[str, Any] | BaseException] = asyncio.Queue()

        def put(event: dict[str, Any] | BaseException) -> None:
            _call_soon(loop, lambda: events.put_nowait(event))

        job = _Job(
            work, False, seconds,
            lambda result, error: put({"done": result} if error is None else error), put,
        )  # fmt: skip
        self._put(job)
        try:
            while True:
                event = await events.get()
                if isinstance(event, BaseException):
                    raise event
                yield event
                if "done" in event:
                    return
        finally:
            job.gone.set()

    @property
    def waiting(self) -> int:
        """Jobs that have not begun."""
        return sum(map(len, self._waiting.values()))

    def serve_quick(self) -> None:
        """Do the interactive jobs that wait, from inside a long one."""
        while True:
            with self._ready:
                if not self._waiting[True]:
                    return
                job = self._waiting[True].popleft()
            self._do(job)

    def _put(self, job: _Job) -> None:
        with self._ready:
            queue = self._waiting[job.quick]
            if self._closed or len(queue) >= self._most[job.quick]:
                raise BusyError(f"{len(queue)} requests are waiting already: try again in a moment")
            queue.append(job)
            self._ready.notify()

    def _loop(self) -> None:
        while True:
            with self._ready:
                while not self._closed and not any(self._waiting.values()):
                    self._ready.wait()
                if self._closed:
                    return
                job = (self._waiting[True] or self._waiting[False]).popleft()
            self._do(job)

    def _do(self, job: _Job) -> None:
        if job.gone.is_set():
            return
        turn = Turn(self, job)
        self._running.append(job)
        try:
            if time.monotonic() > job.until:
                raise LateError("other work took too long: try again in a moment")
            result = job.context.run(job.work, turn)
        except BaseException as error:  # the thread must outlive whatever one job does
            job.done(None, error)
        else:
            job.done(result, None)
        finally:
            self._running.remove(job)


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        return  # the server has ended, nobody waits
