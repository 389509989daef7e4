"""Every Hugging Face family with attention is seen, or listed as unseen (docs/models.md)."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

import pytest
import torch

import limelight as ll

ROOT = Path(__file__).parents[2]


@pytest.fixture
def families(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "dev")
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
    rows = {
        "bert": "fused", "bloom": "dense", "longformer": "refused", "wavlm": "fused",
        "git": "dense",  # a model with a softmax of its own around one on the interface
        "pvt": "dense in part",  # only one of its four stages attends to every token
        "autoformer": "refused",  # what it returns are not weights
        "rt_detr_v2": "fused in part",  # some weights belong to sampled points
        "layoutlmv2": "dense",
    }  # fmt: skip
    table = (ROOT / "docs" / "models.md").read_text("utf-8")
    for family, seen in rows.items():
        assert families.seen(family).seen == seen
        assert f"| {family} | {seen} | run |" in table


@pytest.mark.usefixtures("untyped")
def test_a_model_that_fails_when_its_weights_are_requested_raises_with_a_note(families):
    from transformers.models.maskformer import modeling_maskformer_swin as home

    model, inputs = families.tiny(home.MaskFormerSwinModel, {})
    with pytest.raises(TypeError) as caught, torch.no_grad(), ll.watch(model):
        model(**inputs)
    assert "output_attentions=True" in caught.value.__notes__[0]
