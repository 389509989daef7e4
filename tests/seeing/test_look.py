"""Looking at texts: what is read, by which model, and what is said about it."""

from __future__ import annotations

import pytest
import torch

import limelight as ll


@pytest.fixture(scope="module")
def minilm():
    return ll.load("minilm")


def test_a_folder_that_was_saved_again_is_read_again(minilm, tmp_path):
    folder = tmp_path / "model"
    ll.save(minilm, folder)
    first = ll.look("a cat", folder, layers=[0]).weights(0, 0)
    assert torch.equal(ll.look("a cat", folder, layers=[0]).weights(0, 0), first)
    changed = ll.load(folder)
    with torch.no_grad():
        changed.stack.blocks[0].attention.inputs.weight.mul_(2)
    ll.save(changed, folder)
    assert not torch.allclose(ll.look("a cat", folder, layers=[0]).weights(0, 0), first)


def test_a_text_that_is_cut_is_said_by_a_warning(minilm):
    with pytest.warns(UserWarning, match=r"longer than the model's context: the first 512 of 902"):
        recording = ll.look("tick tock " * 300, minilm, layers=[0], heads=[0])
    assert recording.made["taken"] == "the first 512 of 902 tokens"
