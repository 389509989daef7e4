"""The explorer: how long does a person wait, from starting it to a tile of a long text?"""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.embed import real_sentences
from benchmarks.harness import Bench, Target, UnableError, at_most
from limelight.explorer.frames import parse_frame

TITLE = "the explorer, in real Chromium and with many clients"
TARGET = (
    "first page < 4 s after the start and < 300 kB; 20 tokens on MiniLM to a picture < 300 ms; "
    "a tile of a long text < 100 ms; 200 clients at once all answered"
)

LIMELIGHT = str(Path(sys.executable).with_name("limelight"))
CLIENTS = 200
TYPED = "The animal did not cross the wide old street near the river because it was too tired {}."
"""20 tokens; a number at the end makes each text a new one."""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

_TYPE_AND_WAIT = """(text) => new Promise((resolve) => {
  const panel = document.querySelector(".attention");
  const field = document.querySelector(".type");
  const [before, below] = [panel.dataset.drawn, panel.dataset.below];
  const began = performance.now();
  const elapsed = () => performance.now() - began;
  const afterFrame = (then) => requestAnimationFrame(() => setTimeout(() => then(elapsed())));
  let first = null;
  new MutationObserver((_, observer) => {
    if (panel.dataset.drawn !== before) first ??= new Promise(afterFrame);
    if (panel.dataset.below === below || panel.dataset.below !== panel.dataset.drawn) return;
    observer.disconnect();
    afterFrame(async (time) => resolve([await first, time]));
  }).observe(panel, { attributes: true, attributeFilter: ["data-drawn", "data-below"] });
  field.value = text;
  field.dispatchEvent(new Event("input", { bubbles: true }));
})"""
"""Milliseconds from the last key press to the frame that shows the head at which the page opens
(the text, its heat map and its links), and to the frame that shows everything, with all heads."""


def measure(bench: Bench) -> list[Target]:
    starts: list[float] = []
    with _browser() as browser:
        for turn in range(bench.pick((5,), quick=(2,))[0]):
            bench.say(f"start {turn + 1}")
            began = time.perf_counter()
            with _server() as url:
                page = browser.new_page()
                page.goto(url)
                page.locator("h1").wait_for()
                starts.append(time.perf_counter() - began)
                page.close()
    with _server() as url:
        bench.say("first paint")
        with _browser() as browser:
            sent, (first, whole) = _page(browser, url, bench.pick((40,), quick=(6,))[0])
        bench.say("tiles")
        model, tokens, tiles = _tiles(url, *bench.pick(("smollm2",), quick=("minilm",)))
        bench.say(f"{CLIENTS} clients")
        waits = sorted(asyncio.run(_concurrent_clients(url)))
    p50, p99 = waits[len(waits) // 2], waits[int(0.99 * len(waits)) - 1]
    return [
        at_most("start to first page", statistics.median(starts), 4.0, " s"),
        at_most("sent for the first paint", sent / 1000, 300.0, " kB"),
        at_most("last key to picture, 20 tokens", statistics.median(first), 300.0, " ms"),
        at_most("last key to all 72 heads", statistics.median(whole), 300.0, " ms"),
        at_most(f"a tile of {tokens:,} tokens on {model}", statistics.median(tiles), 100.0, " ms"),
        Target(f"{CLIENTS} clients at once, all answered",
               f"p50 {p50:.2f} s, p99 {p99:.2f} s", len(waits) == CLIENTS),
    ]  # fmt: skip


@contextmanager
def _server() -> Generator[str]:
    """Start an explorer and yield its address."""
    command = [LIMELIGHT, "explore", "--port", "0", "--no-open", "--model", "minilm", "smollm2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        try:
            assert child.stdout is not None
            address = re.search(r"http://\S+", child.stdout.readline())
            if address is None:
                raise subprocess.CalledProcessError(child.wait(), command)
            yield address[0]
        finally:
            child.send_signal(signal.SIGINT)


@contextmanager
def _browser() -> Generator[Any]:
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((path for name in names if (path := shutil.which(name))), None)
    if program is None:
        raise UnableError("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


def _page(browser: Any, url: str, texts: int) -> tuple[int, list[list[float]]]:
    """Bytes sent for the first paint; milliseconds to the first head and to all, for each text."""
    page = browser.new_page()
    requests: list[Any] = []

    def finished(request: Any) -> None:  # playwright sets attributes on handlers: no bound method
        requests.append(request)

    page.on("requestfinished", finished)
    page.goto(url)
    page.locator(".attention[data-below]").wait_for()
    sizes = [request.sizes() for request in requests]
    sent = sum(size["responseBodySize"] + size["responseHeadersSize"] for size in sizes)
    times = [page.evaluate(_TYPE_AND_WAIT, TYPED.format(number)) for number in range(texts + 2)]
    page.close()
    return sent, [list(each) for each in zip(*times[2:], strict=True)]  # two texts to warm up


def _tiles(url: str, model: str) -> tuple[str, int, list[float]]:
    """Milliseconds for each exact tile of a long text."""
    text = " ".join(real_sentences(900))[: 30_000 if model == "smollm2" else 1_600]
    body: dict[str, Any] = {"model": model, "text": text, "layer": 1, "head": 0}
    times: list[float] = []
    with httpx.Client(base_url=url, timeout=600) as client:
        tokens = int(parse_frame(client.post("api/overview", json=body).content)[0]["rows"])
        for turn in range(24):
            corner = {"top": turn * tokens // 32, "left": turn * tokens // 48}
            began = time.perf_counter()
            client.post("api/tile", json={**body, **corner}).raise_for_status()
            times.append(1000 * (time.perf_counter() - began))
    return model, tokens, times[2:]


async def _concurrent_clients(url: str) -> list[float]:
    """Seconds that each of many concurrent clients waits for a sentence of its own."""

    async def wait(client: httpx.AsyncClient, number: int) -> float:
        began = time.perf_counter()
        text = f"Client {number} asks what the animal did because it was too tired."
        response = await client.post("api/look", json={"model": "minilm", "text": text})
        response.raise_for_status()
        return time.perf_counter() - began

    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        return await asyncio.gather(*(wait(client, number) for number in range(CLIENTS)))
