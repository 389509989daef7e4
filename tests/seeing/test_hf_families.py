"""Every Hugging Face family with attention is seen, or said not to be (docs/models.md)."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def families():
    spec = importlib.util.spec_from_file_location("families", ROOT / "dev" / "families.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    logging.disable(logging.WARNING)
    yield module
    logging.disable(logging.NOTSET)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("untyped")
def test_the_table_of_families_is_current(families):
    rows = [families.seen(family) for family in families.families()]
    table = (ROOT / "docs" / "models.md").read_text("utf-8")
    assert families.page(rows) == table


def test_a_few_families_are_seen_as_the_table_says(families):
    rows = {"bert": "fused", "bloom": "dense", "longformer": "refused", "wavlm": "fused"}
    table = (ROOT / "docs" / "models.md").read_text("utf-8")
    for family, seen in rows.items():
        assert families.seen(family).seen == seen
        assert f"| {family} | {seen} | run |" in table
