"""The queue: interactive work first, bounded, and nothing goes on for someone who has left."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from limelight.explorer.worker import (
    ClientDisconnectedError,
    Job,
    JobTimeoutError,
    QueueFullError,
    Worker,
)


def test_interactive_work_goes_before_long_work_that_waits_and_inside_long_work_that_pauses() -> (
    None
):
    done: list[str] = []

    async def walk() -> None:
        worker = Worker()
        started, go = threading.Event(), threading.Event()

        def long(job: Job) -> None:
            started.set()
            go.wait(10)
            job.pause()
            done.append("long")

        first = asyncio.ensure_future(worker.run(long, interactive=False))
        await asyncio.to_thread(started.wait, 10)
        later = asyncio.ensure_future(worker.run(lambda _: done.append("later"), interactive=False))
        quick = asyncio.ensure_future(worker.run(lambda _: done.append("quick")))
        while worker.waiting < 2:
            await asyncio.sleep(0.01)
        go.set()
        await asyncio.gather(first, later, quick)
        worker.close()

    asyncio.run(walk())
    assert done == ["quick", "long", "later"]


def test_a_full_queue_says_so_and_an_error_of_one_job_leaves_the_others() -> None:
    async def walk() -> None:
        worker = Worker(max_interactive=1)
        go = threading.Event()
        running = asyncio.ensure_future(worker.run(lambda _: go.wait(10)))
        await asyncio.sleep(0.05)
        waiting = asyncio.ensure_future(worker.run(lambda _: 1 / 0))
        await asyncio.sleep(0.05)
        with pytest.raises(QueueFullError, match="waiting already"):
            await worker.run(lambda _: None)
        go.set()
        await running
        with pytest.raises(ZeroDivisionError):
            await waiting
        assert await worker.run(lambda _: 7) == 7
        worker.close()

    asyncio.run(walk())


def test_who_leaves_ends_their_work_and_what_takes_too_long_is_refused() -> None:
    ended = threading.Event()

    def long(job: Job) -> None:
        try:
            while True:
                time.sleep(0.01)
                job.pause()
        except ClientDisconnectedError:
            ended.set()
            raise

    async def walk() -> None:
        worker = Worker()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(worker.run(long, interactive=False), 0.2)
        assert await asyncio.to_thread(ended.wait, 10)
        with pytest.raises(JobTimeoutError, match="shorter text"):
            await worker.run(long, interactive=False, seconds=0.1)
        worker.close()

    asyncio.run(walk())


def test_events_come_as_they_are_reported_and_end_with_the_result() -> None:
    async def walk() -> list[object]:
        worker = Worker()

        def count(job: Job) -> str:
            for number in range(3):
                job.report({"number": number})
            return "end"

        events = [event async for event in worker.stream(count)]
        worker.close()
        return events

    assert asyncio.run(walk()) == [{"number": 0}, {"number": 1}, {"number": 2}, {"done": "end"}]
