"""Watched beam search: each sequence is followed through the rows that held it."""

from __future__ import annotations

import pytest
import torch
from hf_models import (
    BART,
    DECODERS,
    T5,
    WHISPER,
)
from torch import Tensor
from watch_checks import GREEDY, IDS, check_statistics

import limelight as ll
from limelight.errors import OptionError

BEAMS = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 6}


@pytest.mark.parametrize(
    ("name", "cache"),
    [("llama", "dynamic"), ("gemma3", "dynamic"), ("gpt2", "dynamic"), ("llama", "static")],
)
def test_beams_are_followed_from_call_to_call(name, cache):
    """Beams change rows between calls; each is one text, prompt and generated tokens together."""
    model = DECODERS[name]()
    options = {**GREEDY, **BEAMS}
    if cache == "static":
        options["cache_implementation"] = "static"
    lens = ll.Lens(top=3, entropy=True, distance=True, band=2, received=True)
    with ll.watch(model, lens) as watched:
        sequences = model.generate(IDS, **options)
    assert watched.passes() == 1
    model.set_attn_implementation("eager")

    def eager(ids: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return model(ids, output_attentions=True, use_cache=False).attentions

    for row, sequence in enumerate(sequences):
        recording = watched.recording(row=row, sequences=sequences)
        assert [token.text for token in recording.tokens] == [
            str(token) for token in sequence[:-1].tolist()
        ]
        for layer, weights in enumerate(eager(sequence[None, :-1])):
            check_statistics(recording.seen(layer), weights)
    rows = [[int(token.text) for token in watched.recording(row=row).tokens] for row in range(6)]
    for layer, weights in enumerate(eager(torch.tensor(rows))):
        check_statistics(watched.seen(layer), weights)
        last = watched.calls(layer)[-1].dense()
        kept = weights[:, :, -1:, -last.shape[3] :]
        torch.testing.assert_close(last, kept, atol=1e-5, rtol=1e-4)


def test_beams_are_followed_without_keeping_keys():
    seen = []
    for keep in (True, False):
        model = DECODERS["llama"]()
        with ll.watch(model, ll.Lens(top=3, received=True, keep=keep)) as watched:
            model.generate(IDS, **GREEDY, **BEAMS)
        assert all((call.source is None) != keep for call in watched.calls(1))
        seen.append(watched.seen(1))
    assert torch.equal(seen[0].top.indices, seen[1].top.indices)
    assert torch.equal(seen[0].received, seen[1].received)


@pytest.mark.parametrize("make", [T5, BART, WHISPER])
def test_beams_of_a_target_are_followed_from_call_to_call(make):
    """The source's keys are the same for all beams; the target's own say which beam continues."""
    model = make()
    source = {"input_ids": IDS}
    if make is WHISPER:
        source = {"input_features": torch.randn(2, 8, 40)}
    with ll.watch(model, ll.Lens(top=3, received=True)) as watched:
        sequences = model.generate(**source, **BEAMS, do_sample=False)
    assert [watched.passes(stack) for stack in watched.stacks] == [1, 1, 1]
    model.set_attn_implementation("eager")
    for row in range(6):
        for stack in ("decoder", "cross"):
            recording = watched.recording(stack=stack, row=row, sequences=sequences)
            ids = torch.tensor([[int(token.text) for token in recording.queries]])
            own = {name: tensor[row // 3][None] for name, tensor in source.items()}
            with torch.no_grad():
                eager = model(**own, decoder_input_ids=ids, output_attentions=True, use_cache=False)
            for layer, weights in enumerate(getattr(eager, f"{stack}_attentions")):
                torch.testing.assert_close(
                    recording.seen(layer).dense(), weights, atol=1e-4, rtol=1e-3
                )
            if stack == "cross" and make is not WHISPER:
                names = [token.text for token in recording.tokens]
                assert names == [str(token) for token in IDS[row // 3].tolist()]


def test_a_beam_that_ended_early_is_found_by_its_sequence():
    model = DECODERS["llama"]()
    options = {**GREEDY, **BEAMS, "max_new_tokens": 12}
    endless = model.generate(IDS[:1], **options)
    # A token that one beam generates: it ends there and others continue.
    options["eos_token_id"] = eos = int(endless[0, 14])
    with ll.watch(model, ll.Lens()) as watched:
        sequences = model.generate(IDS[:1], **options)
    ended = [row for row, ids in enumerate(sequences.tolist()) if eos in ids[11:-1]]
    assert ended
    model.set_attn_implementation("eager")
    for row in ended:
        length = sequences[row, 11:].tolist().index(eos) + 11
        recording = watched.recording(row=row, sequences=sequences)
        assert len(recording.tokens) == length < watched.seen(0).extent.j
        with torch.no_grad():
            eager = model(sequences[row][None, :length], output_attentions=True).attentions
        torch.testing.assert_close(recording.seen(1).dense(), eager[1], atol=1e-5, rtol=1e-4)
    for wrong, row, message in (
        (sequences + 1, 0, "found ids in row 0 that no beam of it read"),
        (sequences[0], 0, r"sequences must be token ids \(rows, n\), found torch.int64 of shape"),
        (sequences, 3, "row must be one of 0 to 2, found 3"),
        (None, 3, "row must be one of 0 to 2, found 3"),
    ):
        with pytest.raises(OptionError, match=message):
            watched.recording(row=row, sequences=wrong)
