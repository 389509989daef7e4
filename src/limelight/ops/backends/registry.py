"""The backends in the order in which they are tried, and which of them serves a call."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Literal, NamedTuple, cast

from limelight.errors import OptionError, UnavailableError
from limelight.ops.backends import native, reference, tiled, torch_fused
from limelight.ops.backends.protocol import Backend, Extras
from limelight.ops.kernels import missing
from limelight.ops.problem import Problem

Name = Literal["native", "torch", "tiled", "reference"]
Implementation = Literal["auto", "native", "torch", "tiled", "reference"]

BACKENDS = cast("tuple[Backend, ...]", (native, torch_fused, tiled, reference))
"""A call goes to the first that serves it."""


class Choice(NamedTuple):
    """Which implementation serves a call, and why."""

    impl: Name
    reason: str


def choose(problem: Problem, impl: Implementation, extras: Extras) -> tuple[Backend, str]:
    """The backend that serves a call, and why; raises where one requested by name cannot."""
    if not isinstance(impl, str):
        raise OptionError(f"impl must be 'auto' or the name of a backend, found {impl!r}")
    if impl != "auto":
        return _named(problem, impl, extras), "requested by name"
    obstacle: str | None = None
    for backend in BACKENDS:
        why_not = backend.why_not(problem, extras)
        if why_not is None:
            if backend.NAME in ("tiled", "reference") and missing() is not None:
                _warn_once(f"limelight runs on its slower PyTorch form: {missing()}")
            return backend, backend.REASON if obstacle is None else f"{backend.REASON}: {obstacle}"
        obstacle = obstacle or why_not
    raise UnavailableError(f"no implementation serves this call: {obstacle}")


def _named(problem: Problem, impl: str, extras: Extras) -> Backend:
    for backend in BACKENDS:
        if impl == backend.NAME:
            why_not = backend.why_not(problem, extras)
            if why_not is not None:
                raise UnavailableError(f"impl={impl!r} cannot serve this call: {why_not}")
            return backend
    known = ", ".join(repr(backend.NAME) for backend in BACKENDS)
    raise OptionError(f"impl must be 'auto' or one of {known}, found {impl!r}")


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=5)
