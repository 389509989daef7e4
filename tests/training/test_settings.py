from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from limelight.errors import FileError, OptionError
from limelight.layers.rotary import LinearScaling
from limelight.training.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"


def table(**changes: Any) -> dict[str, Any]:
    return {
        "folder": "run",
        "steps": 10,
        "batch": 4,
        "data": {"text": "a.txt"},
        "model": {"preset": "gpt2", "layers": 1, "heads": 2, "width": 8, "context": 8},
        **changes,
    }


@pytest.mark.parametrize("name", ["shakespeare", "english-french"])
def test_the_example_recipes_are_read(name: str) -> None:
    settings = Settings.from_file(EXAMPLES / f"{name}.toml")
    assert settings.folder == f"runs/{name}"
    assert settings.config(vocabulary=100).vocabulary == 100
    assert Settings.from_table(_plain(settings.as_table())) == settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bacth": 3}, "there is no setting 'bacth'; did you mean 'batch'"),
        ({"data": {"txt": "a"}}, "there is no setting 'data.txt'; did you mean 'data.text'"),
        ({"data": {}}, "exactly one of text and pairs"),
        ({"data": {"text": "a", "pairs": "b"}}, "exactly one of text and pairs"),
        ({"data": {"pairs": "a.tsv"}}, "trains a transformer, but .model. describes a decoder"),
        ({"data": {"text": 3}}, "data.text must be a list of texts, found 3"),
        ({"data": {"text": "a", "held_out": 2}}, "data.held_out must be above 0, .* found 2"),
        ({"data": {"text": "a", "held_out": 0}}, "data.held_out must be above 0, .* found 0"),
        ({"steps": 0}, "steps must be at least 1, found 0"),
        ({"steps": True}, "steps must be a whole number, found True"),
        ({"steps": 1.5}, "steps must be a whole number, found 1.5"),
        ({"precision": "fp8"}, "precision must be one of 'float32', 'bfloat16', found 'fp8'"),
        (
            {"optimizer": {"learning_rate": "high"}},
            "optimizer.learning_rate must be a number, found 'high'",
        ),
        (
            {"optimizer": {"final_learning_rate": 1.0}},
            "optimizer.final_learning_rate must be from 0 to 0.001",
        ),
        ({"model": {"preset": "gpt5"}}, "model.preset must be one of 'gpt2'"),
        ({"model": {"preset": "gpt2", "heads": 7}}, "width must be a multiple of heads"),
        ({"model": {"preset": "gpt2", "vocabulary": 7}}, "model.vocabulary is set by the training"),
        ({"model": {"preset": "gpt2", "dropout": "0.1"}}, "dropout must be a number, found '0.1'"),
        ({"model": {"preset": "llama", "rotary_base": "x"}}, "rotary_base must be a number"),
        ({"model": {"preset": "llama", "width": "a"}}, "width must be a whole number .* found 'a'"),
        ({"model": {"preset": "llama", "rotary_scaling": "linear"}}, "scaling must be a table"),
        ({"model": {"preset": "llama", "rotary_scaling": {"kind": "odd"}}}, "must be one of .*odd"),
        ({"model": {"preset": "gpt2", "tied": "no"}}, "tied must be true or false, found 'no'"),
        ({"data": 3}, "data must be a table, found 3"),
        ({"data": {"text": ["a", 3]}}, "data.text must be a list of texts"),
        ({"tokens": {"kind": "words"}}, "tokens.kind must be one of 'characters', 'bpe'"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_wrong_settings_raise(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Settings.from_table(table(**changes))


def test_rotary_scaling_is_read_from_a_table() -> None:
    scaling = {"kind": "linear", "factor": 2.0}
    model = {"preset": "llama", "layers": 1, "heads": 2, "width": 8, "rotary_scaling": scaling}
    settings = Settings.from_table(table(model=model))
    assert settings.config(vocabulary=9).rotary_scaling == LinearScaling(2.0)
    assert Settings.from_table(_plain(settings.as_table())) == settings


def test_missing_settings_are_named() -> None:
    incomplete = table()
    del incomplete["batch"]
    with pytest.raises(OptionError, match="the setting 'batch' is missing"):
        Settings.from_table(incomplete)


def test_files_that_are_not_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file"):
        Settings.from_file(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("steps = = 3")
    with pytest.raises(FileError, match=r"broken\.toml: not TOML"):
        Settings.from_file(broken)
    broken.write_text("stesp = 3")
    with pytest.raises(OptionError, match=r"broken\.toml: there is no setting 'stesp'"):
        Settings.from_file(broken)


def _plain(value: Any) -> Any:
    """As TOML is read: lists instead of tuples."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if item != ()}
    return list(value) if isinstance(value, tuple) else value
