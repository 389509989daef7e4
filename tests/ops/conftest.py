"""These tests test the kernels, so without them none may pass."""

from __future__ import annotations

import pytest

from limelight.ops.kernels import missing

if missing():
    pytest.fail(f"these tests need the kernels: {missing()}", pytrace=False)
