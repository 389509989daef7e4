"""One thread that does all model work: interactive work before long work, oldest first.

The work of a job is a function of its `Job`. Long work calls `job.pause()` regularly, which lets
interactive work go first and ends the job once its client has left. Each job runs in the context
of its request, so that interceptors of one request do not reach another.
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

MAX_INTERACTIVE = 1024
"""Interactive jobs that may wait."""
MAX_LONG = 8
"""Long jobs that may wait."""


class QueueFullError(LimelightError):
    """More work is waiting than the queue holds."""


class JobTimeoutError(LimelightError):
    """The work did not begin, or did not end, before its deadline."""


class ClientDisconnectedError(Exception):
    """The client has disconnected, which ends its job."""


@dataclass
class Job:
    """One piece of work, which takes this job as its argument, and how to reach its request."""

    worker: Worker
    work: Callable[[Job], Any]
    interactive: bool
    seconds: float
    done: Callable[[Any, BaseException | None], None]
    report: Callable[[dict[str, Any]], None] = lambda _: None
    """sends the progress of the work to the waiting request"""
    cancelled: threading.Event = field(default_factory=threading.Event)
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    deadline: float = 0.0

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.seconds

    def pause(self) -> None:
        """Let interactive work go first; raise if the client has left or the time is up."""
        if not self.interactive:
            self.worker.run_interactive()
        if self.cancelled.is_set():
            raise ClientDisconnectedError
        if time.monotonic() > self.deadline:
            raise JobTimeoutError(f"this took longer than {self.seconds:.0f} s: use a shorter text")


class Worker:
    """The thread and its two queues."""

    def __init__(self, max_interactive: int = MAX_INTERACTIVE, max_long: int = MAX_LONG) -> None:
        self._limits = {True: max_interactive, False: max_long}
        self._waiting: dict[bool, deque[Job]] = {True: deque(), False: deque()}
        self._ready = threading.Condition()
        self._closed = False
        self._running: list[Job] = []
        self._thread = threading.Thread(target=self._loop, name="limelight-work", daemon=True)
        self._thread.start()

    def close(self, seconds: float = 10.0) -> None:
        """Accept no more work; waiting jobs are dropped, running ones end at their next pause.

        Joins the thread: an interpreter that exits while PyTorch computes aborts.
        """
        with self._ready:
            self._closed = True
            for job in (*self._waiting[True], *self._waiting[False], *self._running):
                job.cancelled.set()
            self._ready.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    async def run(
        self, work: Callable[[Job], Result], *, interactive: bool = True, seconds: float = 60.0
    ) -> Result:
        """Run the work and return its result; cancelling the wait cancels the work."""
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

        job = Job(self, work, interactive, seconds, done)
        self._put(job)
        try:
            return await future
        finally:
            job.cancelled.set()

    async def stream(
        self, work: Callable[[Job], Any], *, seconds: float = 600.0
    ) -> AsyncIterator[dict[str, Any]]:
        """Run long work and yield its reports, then its result under `done`."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[dict[str, Any] | BaseException] = asyncio.Queue()

        def put(event: dict[str, Any] | BaseException) -> None:
            _call_soon(loop, lambda: events.put_nowait(event))

        job = Job(
            self, work, False, seconds,
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
            job.cancelled.set()

    @property
    def waiting(self) -> int:
        """The number of jobs that have not begun."""
        return sum(map(len, self._waiting.values()))

    def run_interactive(self) -> None:
        """Run the waiting interactive jobs, from inside a long one."""
        while True:
            with self._ready:
                if not self._waiting[True]:
                    return
                job = self._waiting[True].popleft()
            self._run_job(job)

    def _put(self, job: Job) -> None:
        with self._ready:
            queue = self._waiting[job.interactive]
            if self._closed or len(queue) >= self._limits[job.interactive]:
                raise QueueFullError(
                    f"{len(queue)} requests are waiting already: try again in a moment"
                )
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
            self._run_job(job)

    def _run_job(self, job: Job) -> None:
        if job.cancelled.is_set():
            return
        self._running.append(job)
        try:
            if time.monotonic() > job.deadline:
                raise JobTimeoutError("other work took too long: try again in a moment")
            result = job.context.run(job.work, job)
        except BaseException as error:  # no error of a job may end the thread
            job.done(None, error)
        else:
            job.done(result, None)
        finally:
            self._running.remove(job)


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        return  # the loop is closed, so no request is waiting
