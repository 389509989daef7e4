"""Studies: verdicts that follow from numbers by a rule, the same numbers for the same seed."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path

import pytest

import limelight as ll
from limelight.cli import main
from limelight.errors import LimelightError
from limelight.insight.studies import training
from limelight.insight.studies.registry import STUDIES
from limelight.insight.studies.study import Study, at_least, at_most, exponent


def test_every_file_is_a_study_that_is_listed() -> None:
    folder = Path(importlib.import_module("limelight.insight.studies").__path__[0])
    parts = {"__init__", "figure", "registry", "training", "study"}
    assert {path.stem for path in folder.glob("*.py")} - parts == set(STUDIES)


def test_a_wrong_claim_gets_does_not() -> None:
    """The same numbers under the opposite claim: dot products do not grow with d."""
    scaling = ll.study("scaling")
    assert scaling.verdict == "holds"
    numbers = scaling.details["numbers"]
    sizes = list(numbers)
    growth = exponent(sizes, [numbers[size]["variance"] for size in sizes])
    wrong = dataclasses.replace(
        scaling,
        claim="dot products stay as they are whatever d, and scaling changes nothing.",
        checks=(
            at_most("exponent of Var(q·k) in d", growth, 0.1),
            at_least("entropy without scaling, d 1024", numbers[1024]["entropy, plain"], 0.8),
        ),
    )
    assert wrong.verdict == "does not"
    assert wrong.line.startswith("scaling: does not (0 of 2 checks). Claim: dot products stay")
    assert json.loads(wrong.to_json())["verdict"] == "does not"
    half = dataclasses.replace(scaling, checks=(*wrong.checks, *scaling.checks))
    assert half.verdict == "holds partly"


@pytest.mark.parametrize("name", ["roles", "focus", "geometry"])
def test_the_same_seed_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
    first, again, other = (ll.study(name, seed=seed) for seed in (3, 3, 4))
    assert first.to_json() == again.to_json()
    assert first.to_json() != other.to_json()
    assert first.verdict in ("holds", "holds partly")
    first.save(tmp_path / "study.png")
    assert (tmp_path / "study.png").stat().st_size > 10_000


def test_training_studies_repeat_and_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them, with fewer steps: the mechanism that all of them share."""
    from limelight.insight.studies import heads

    monkeypatch.setattr(heads, "STEPS", 40)
    first, again = heads.run(5), heads.run(5)
    assert first.to_json() == again.to_json()
    assert training.parameters(ll.Attention(32, heads=1)) == training.parameters(
        ll.Attention(32, heads=4)
    )


def test_figures_name_what_is_compared_and_every_point() -> None:
    from limelight.insight.studies.study import Curve, Panel

    bars = Panel("by kind", "kind", "share", [Curve("share", ["none", "rotary"], [0.5, 1.0])])
    sizes = [Curve("d", (4, 1024), (4, 1024), reference=True), Curve("q·k", (4, 1024), (4, 1000))]
    lines = Panel("by size", "d", "variance", sizes, log_x=True)
    study = Study("x", "a claim.", "000", "what", (at_least("share", 1.0, 0.9),), (bars, lines))
    left, right = study.figure().axes
    assert [label.get_text() for label in left.get_xticklabels()] == ["none", "rotary"]
    assert len(left.patches) == 2
    assert [label.get_text() for label in right.get_xticklabels()] == ["4", "1,024"]
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["d", "q·k"]


def test_an_unknown_name_is_said_with_the_nearest() -> None:
    with pytest.raises(LimelightError, match="there is no study 'scalign': did you mean scaling"):
        ll.study("scalign")


def test_the_command_lists_writes_and_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: str) -> tuple[object, str]:
        monkeypatch.setattr("sys.argv", ["limelight", "study", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().out

    assert [line.split()[0] for line in run("--list")[1].splitlines()] == list(STUDIES)
    assert run("nothing")[0] == 2
    assert run()[0] == 2
    code, out = run("roles", "--to", str(tmp_path))
    assert code == 0
    assert "roles: holds (4 of 4 checks)" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["roles.json", "roles.png"]
    [told] = json.loads(run("roles", "--json")[1])
    assert told == json.loads((tmp_path / "roles.json").read_text())


GUIDE = Path(__file__).parents[2] / "docs" / "studies"
TIMED = ("parallel", "cost")
"""Studies of times, which a busy machine makes anything of: the guide prints none of them."""


@pytest.mark.soak
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_gives_a_verdict_and_that_of_the_guide(name: str) -> None:
    """Training on other kernels moves digits: numbers agree within a tenth, verdicts exactly."""
    result = ll.study(name)
    assert isinstance(result, Study)
    assert all(check.measured == check.measured for check in result.checks), result.checks
    assert (GUIDE / f"{name}.json").exists() == (name not in TIMED)
    if name in TIMED:
        return
    assert result.verdict != "does not", str(result)
    printed = json.loads((GUIDE / f"{name}.json").read_text(encoding="utf-8"))
    assert result.verdict == printed["verdict"]
    for check, then in zip(result.checks, printed["checks"], strict=True):
        assert check.measured == pytest.approx(then["measured"], rel=0.1, abs=0.05), check.what
