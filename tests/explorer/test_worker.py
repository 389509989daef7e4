"""The worker: interactive jobs go first, queues are bounded, and abandoned jobs end."""

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


def test_interactive_jobs_go_before_waiting_long_jobs_and_run_while_a_long_job_pauses() -> None:
    done: list[str] = []

    async def scenario() -> None:
        worker = Worker()
        started, go = threading.Event(), threading.Event()

        def first_long(job: Job) -> None:
            started.set()
            go.wait(10)
            job.pause()
            done.append("first long")

        def second_long(_: Job) -> None:
            done.append("second long")

        first = asyncio.ensure_future(worker.run(first_long, interactive=False))
        await asyncio.to_thread(started.wait, 10)
        second = asyncio.ensure_future(worker.run(second_long, interactive=False))
        quick = asyncio.ensure_future(worker.run(lambda _: done.append("interactive")))
        while worker.waiting < 2:
            await asyncio.sleep(0.01)
        go.set()
        await asyncio.gather(first, second, quick)
        worker.close()

    asyncio.run(scenario())
    assert done == ["interactive", "first long", "second long"]


def test_a_full_queue_refuses_a_job_and_a_failed_job_leaves_the_worker_running() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_job_ends_when_its_client_leaves_or_its_time_is_up() -> None:
    ended = threading.Event()

    def endless(job: Job) -> None:
        try:
            while True:
                time.sleep(0.01)
                job.pause()
        except ClientDisconnectedError:
            ended.set()
            raise

    async def scenario() -> None:
        worker = Worker()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(worker.run(endless, interactive=False), 0.2)
        assert await asyncio.to_thread(ended.wait, 10)
        with pytest.raises(JobTimeoutError, match="shorter text"):
            await worker.run(endless, interactive=False, seconds=0.1)
        worker.close()

    asyncio.run(scenario())


def test_a_stream_yields_the_reports_and_then_the_result() -> None:
    async def scenario() -> list[object]:
        worker = Worker()

        def count(job: Job) -> str:
            for number in range(3):
                job.report({"number": number})
            return "end"

        events = [event async for event in worker.stream(count)]
        worker.close()
        return events

    events = asyncio.run(scenario())
    assert events == [{"number": 0}, {"number": 1}, {"number": 2}, {"done": "end"}]
