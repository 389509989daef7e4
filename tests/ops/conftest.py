"""The kernels are what these tests are about: where they are missing, nothing here may pass."""

from __future__ import annotations

import pytest

from limelight.ops.kernels import missing

if missing():
    pytest.fail(f"these tests need the kernels: {missing()}", pytrace=False)
