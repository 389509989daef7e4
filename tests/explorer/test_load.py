"""Load: generated requests to every route, many clients at once, and memory over time."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import pytest
import torch

import limelight as ll
from explorer.conftest import Server
from limelight.explorer.frames import parse_frame
from limelight.explorer.model_store import MAX_RECORDINGS

pytestmark = pytest.mark.soak


def resident(server: Server) -> float:
    """Resident memory of the server's process, in megabytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def test_generated_requests_never_cause_a_server_error(server: Server) -> None:
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from schemathesis.checks import not_a_server_error

    schema = schemathesis.openapi.from_url(server.url + "api/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 15
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(
            max_examples=25, deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        def call(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=[not_a_server_error], timeout=120)

        call()
    assert httpx.get(server.url + "api/config").status_code == 200


def test_two_hundred_clients_at_once_get_the_weights_of_their_own_texts(server: Server) -> None:
    texts = [f"Client {number} wonders why the animal was too tired." for number in range(200)]

    async def look_at_all() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=len(texts))
        async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as client:
            bodies = [{"model": "minilm", "text": text} for text in texts]
            return await asyncio.gather(*(client.post("api/look", json=body) for body in bodies))

    responses = asyncio.run(look_at_all())
    for text, response in zip(texts, responses, strict=True):
        assert response.status_code == 200, response.text
        header, arrays = parse_frame(response.content)
        assert header["text"] == text
        weights = torch.stack([seen.dense()[0] for seen in ll.look(text).layers])
        torch.testing.assert_close(arrays["weights"], weights, rtol=0, atol=1e-6)


def test_memory_stays_flat(server: Server) -> None:
    def look_at(number: int) -> None:
        body = {"model": "minilm", "text": f"{number} " + "The animal was too tired. " * 6}
        httpx.post(server.url + "api/look", json=body, timeout=120).raise_for_status()
        head = {**body, "layer": 3, "head": 1}
        httpx.post(server.url + "api/overview", json=head, timeout=120).raise_for_status()

    # a limit of time rather than texts, so that a busy machine does not take longer
    end = time.monotonic() + 180
    for number in range(2 * MAX_RECORDINGS):  # fills the cache, and replaces all of it once
        look_at(number)
    before = resident(server)
    number = first = 1000
    while time.monotonic() < end or number < first + MAX_RECORDINGS:
        look_at(number)
        number += 1
    growth = resident(server) - before
    assert growth < 60, f"{growth:.0f} MB more after {number - first} texts, from {before:.0f} MB"
