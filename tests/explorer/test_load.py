"""Long walks: every address with made-up requests, many clients at once, and memory over time."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from explorer.conftest import Server
from limelight.explorer.model_store import MAX_RECORDINGS

pytestmark = pytest.mark.soak


def resident(server: Server) -> float:
    """Megabytes that the server's process holds."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def test_made_up_requests_get_an_answer_that_the_openapi_document_knows(server: Server) -> None:
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from schemathesis.checks import not_a_server_error

    schema = schemathesis.openapi.from_url(server.url + "api/openapi.json")
    count = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        strategy = operation.as_strategy()

        @given(case=strategy)
        @settings(
            max_examples=25, deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        def walk(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=[not_a_server_error], timeout=120)

        walk()
        count += 1
    assert count >= 15
    assert httpx.get(server.url + "api/config").status_code == 200


def test_two_hundred_clients_at_once_are_all_answered(server: Server) -> None:
    async def one(client: httpx.AsyncClient, number: int) -> float:
        began = time.perf_counter()
        text = f"Client {number} asks what the animal did because it was too tired."
        answer = await client.post("api/look", json={"model": "minilm", "text": text})
        assert answer.status_code == 200, answer.text
        return time.perf_counter() - began

    async def walk() -> list[float]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as client:
            return sorted(await asyncio.gather(*(one(client, n) for n in range(200))))

    times = asyncio.run(walk())
    print(f"200 clients: p50 {times[100]:.2f} s, p99 {times[197]:.2f} s")
    assert len(times) == 200


def test_memory_stays_flat(server: Server) -> None:
    def ask(number: int) -> None:
        body = {"model": "minilm", "text": f"{number} " + "The animal was too tired. " * 6}
        httpx.post(server.url + "api/look", json=body, timeout=120).raise_for_status()
        where = {**body, "layer": 3, "head": 1}
        httpx.post(server.url + "api/overview", json=where, timeout=120).raise_for_status()

    # the clock counts from here, so that a busy machine does fewer texts rather than take longer
    end = time.monotonic() + 180
    for number in range(2 * MAX_RECORDINGS):  # fills what is kept, and turns it over once
        ask(number)
    before = resident(server)
    number = first = 1000
    while time.monotonic() < end or number < first + MAX_RECORDINGS:
        ask(number)
        number += 1
    grown = resident(server) - before
    print(f"{grown:.0f} MB more after {number - first} texts, from {before:.0f} MB")
    assert grown < 60, f"{grown:.0f} MB more after {number - first} texts"
