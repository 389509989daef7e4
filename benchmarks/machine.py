"""The measured ceilings of this machine, and its name and software versions."""

from __future__ import annotations

import ctypes
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

THREADS = 2
_PACKAGES = ("limelight", "torch", "onnxruntime", "openvino", "numpy")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine and its two ceilings, with `THREADS` threads."""

    name: str
    isa: str
    threads: int
    peak_gflops: float
    """Of fused multiply-adds in registers, each counted as two operations."""
    read_gbytes: float
    """Per second, reading an array of 1 GB once."""
    versions: dict[str, str]
    commit: str
    date: str


def measure_machine() -> Machine:
    """Measure both ceilings (about 3 s) and collect names and versions."""
    from limelight import _kernels

    torch.set_num_threads(THREADS)
    multiply_add()
    peaks = [_peak_gflops(10) for _ in range(11)]
    memory = torch.zeros(1 << 28)
    reads = [memory.nbytes / 1e9 / _seconds(lambda: read_memory(memory)) for _ in range(9)]
    return Machine(
        name=_processor(),
        isa=_kernels.isa(),
        threads=THREADS,
        peak_gflops=statistics.median(peaks),
        read_gbytes=statistics.median(reads),
        versions={name: _version(name) for name in _PACKAGES},
        commit=_commit(),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


@cache
def _ceilings() -> ctypes.CDLL:
    """ceilings.cpp, compiled for this machine."""
    source = Path(__file__).parent / "ceilings.cpp"
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/ceilings.so"
        flags = ("-std=c++20", "-O3", "-march=native", "-ffp-contract=fast", "-pthread")
        compiler = os.environ.get("CXX", "c++")
        subprocess.run(
            [compiler, *flags, "-shared", "-fPIC", "-o", library, str(source)], check=True
        )
        loaded = ctypes.CDLL(library)
    loaded.multiply_add.restype = ctypes.c_double
    loaded.read_memory.restype = None
    loaded.read_memory.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
    return loaded


def multiply_add() -> float:
    """Multiply and add in registers only. Returns the number of operations, a constant."""
    return _ceilings().multiply_add(THREADS)


def _peak_gflops(calls: int) -> float:
    start = time.perf_counter()
    operations = sum(multiply_add() for _ in range(calls))
    return operations / (time.perf_counter() - start) / 1e9


def read_memory(tensor: torch.Tensor) -> None:
    """Read a tensor once: the lower bound for any call that needs all of it."""
    _ceilings().read_memory(THREADS, tensor.data_ptr(), tensor.nbytes // 4)


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    pairs = (line.partition(":") for line in lines)
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    family, model = fields.get("cpu family", "?"), fields.get("model", "?")
    cores = sum(line.startswith("processor") for line in lines)
    name = fields.get("model name", platform.machine())
    return f"{name} (family {family}, model {model}), {cores} cores"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    try:
        process = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return process.stdout.strip()
