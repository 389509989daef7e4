"""Any text becomes a label that is visible and cannot affect its surroundings."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from limelight.labels import columns, fit, visible
from views.hostile_tokens import HOSTILE


@given(st.text(alphabet=st.characters(exclude_categories=[]), max_size=60))
def test_labels_hold_no_control_characters(text: str) -> None:
    label = visible(text)
    assert label
    label.encode("utf-8")
    for character in label:
        joiner = character in "\u200c\u200d"
        assert joiner or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(st.text(max_size=40), st.integers(1, 20))
def test_fitted_labels_have_the_requested_width(text: str, width: int) -> None:
    assert columns(fit(visible(text), width)) == width


def test_plain_words_are_unchanged() -> None:
    for word in ("animal", "日本語", "שלום", "naïve", "👩‍👩‍👧", "<script>"):
        assert visible(word) == word


def test_long_tokens_are_cut() -> None:
    assert all(len(visible(token)) <= 8 * 200 for token in HOSTILE)
    assert visible("w" * 10_000).endswith("w…")
