"""Types in signatures are checked while the tests run; hypothesis is quiet and repeatable."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import jaxtyping
import pytest
import torch
from jaxtyping import install_import_hook

install_import_hook("limelight", "beartype.beartype")

hypothesis.settings.register_profile(
    "limelight",
    deadline=None,  # a machine shared with others has no fixed speed
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("limelight")


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    torch.manual_seed(0)


@pytest.fixture
def untyped() -> Iterator[None]:
    """Our own errors for arguments of a wrong type, as callers without a type checker meet them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
