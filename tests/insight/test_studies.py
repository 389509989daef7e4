"""Studies: verdicts that follow from numbers by a rule, the same numbers for the same seed."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
from pathlib import Path

import pytest
import torch

import limelight as ll
from limelight.cli import main
from limelight.errors import LimelightError
from limelight.insight.studies import training
from limelight.insight.studies.registry import STUDIES
from limelight.insight.studies.study import Curve, Panel, Study, at_least, at_most, exponent


def test_every_file_is_a_study_that_is_listed() -> None:
    folder = Path(importlib.import_module("limelight.insight.studies").__path__[0])
    helpers = {"__init__", "figure", "registry", "timing", "training", "study"}
    assert {path.stem for path in folder.glob("*.py")} - helpers == set(STUDIES)


def test_a_wrong_claim_gets_the_verdict_does_not() -> None:
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


def test_training_studies_are_repeatable_and_compare_equal_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One study, with fewer steps: all of them train in the same way."""
    from limelight.insight.studies import heads

    monkeypatch.setattr(heads, "STEPS", 40)
    first, again = heads.run(5), heads.run(5)
    assert first.to_json() == again.to_json()
    assert training.parameters(ll.Attention(32, heads=1)) == training.parameters(
        ll.Attention(32, heads=4)
    )


def test_figures_name_what_is_compared_and_every_point() -> None:
    bars = Panel("by kind", "kind", "share", [Curve("share", ["none", "rotary"], [0.5, 1.0])])
    sizes = [Curve("d", (4, 1024), (4, 1024), reference=True), Curve("q·k", (4, 1024), (4, 1000))]
    lines = Panel("by size", "d", "variance", sizes, log_x=True)
    study = Study("x", "a claim.", "000", "what", (at_least("share", 1.0, 0.9),), (bars, lines))
    left, right = study.figure().axes
    assert [label.get_text() for label in left.get_xticklabels()] == ["none", "rotary"]
    assert len(left.patches) == 2
    assert [label.get_text() for label in right.get_xticklabels()] == ["4", "1,024"]
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["d", "q·k"]


def test_extrapolated_points_are_dotted_and_marked() -> None:
    from limelight.insight.studies import cost

    curve = Curve("eager", (1, 2, 4), (1.0, 4.0, 16.0), predicted=1)
    panel = Panel("time", "tokens", "seconds", [curve], log_x=True)
    study = Study("x", "a claim.", "000", "what", (at_least("share", 1.0, 0.9),), (panel,))
    ran, predicted = study.figure().axes[0].lines
    assert (list(ran.get_xdata()), list(predicted.get_xdata())) == ([1, 2], [2, 4])
    assert (ran.get_linestyle(), predicted.get_linestyle()) == ("-", ":")
    times = {name: cost._extrapolated([1.0], 2.0) for name in cost._WAYS}
    powers, counts = dict.fromkeys(cost._WAYS, 2.0), dict.fromkeys(cost._WAYS, 1)
    table = cost._table("time", times, powers, counts, cost._duration)
    words, comparisons, *cells = table.rows[1]
    assert (words, comparisons) == ("10,000", "100,000,000")
    assert set(cells) == {"≈ 1.67 min"}
    assert set(table.rows[0][2:]) == {"1 s"}


def test_a_number_that_varies_keeps_a_bound_with_all_of_its_interval() -> None:
    assert at_least("ratio", 1.3, 1.0, (1.1, 1.5)).holds
    assert not at_least("ratio", 1.3, 1.0, (0.9, 1.5)).holds
    assert at_least("ratio", 1.3, 1.0, (1.1, 1.5)).cells[1] == "1.3 (1.1 to 1.5)"


def test_the_steps_of_an_lstm_wait_for_one_another_and_those_of_attention_do_not() -> None:
    from limelight.insight.studies.parallel import longest_chain, unrolled

    lstm, attention = torch.nn.LSTM(8, 8, batch_first=True), ll.Attention(8, heads=2)
    texts = [torch.randn(1, n, 8) for n in (10, 20, 40)]
    for x in texts:
        torch.testing.assert_close(unrolled(lstm)(x), lstm(x)[0])
    short, middle, long = (longest_chain(unrolled(lstm)(x)) for x in texts)
    assert long - middle == 2 * (middle - short) > 20
    assert len({longest_chain(attention(x)) for x in texts}) == 1


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(LimelightError, match="there is no study 'scalign': did you mean scaling"):
        ll.study("scalign")


def test_the_command_lists_writes_and_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: str) -> tuple[object, str]:
        monkeypatch.setattr("sys.argv", ["limelight", "study", *arguments])
        with pytest.raises(SystemExit) as exit_info:
            main()
        return exit_info.value.code, capsys.readouterr().out

    assert [line.split()[0] for line in run("--list")[1].splitlines()] == list(STUDIES)
    assert run("nothing")[0] == 2
    assert run()[0] == 2
    code, out = run("roles", "--to", str(tmp_path))
    assert code == 0
    assert "roles: holds (4 of 4 checks)" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["roles.json", "roles.png"]
    [printed] = json.loads(run("roles", "--json")[1])
    assert printed == json.loads((tmp_path / "roles.json").read_text())


GUIDE = Path(__file__).parents[2] / "docs" / "studies"
TIMED = ("parallel", "cost")
"""Studies of times, which depend on the machine: only their verdicts are compared."""


@pytest.mark.soak
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_gives_the_verdict_of_the_guide(name: str) -> None:
    """Training on other kernels changes digits: numbers agree within a tenth, verdicts exactly."""
    result = ll.study(name)
    assert isinstance(result, Study)
    assert not any(math.isnan(check.measured) for check in result.checks), result.checks
    assert result.verdict != "does not", str(result)
    printed = json.loads((GUIDE / f"{name}.json").read_text(encoding="utf-8"))
    assert result.verdict == printed["verdict"]
    expected = printed["checks"]
    assert [check.holds for check in result.checks] == [check["holds"] for check in expected]
    if name in TIMED:
        return
    for check, known in zip(result.checks, expected, strict=True):
        assert check.measured == pytest.approx(known["measured"], rel=0.1, abs=0.05), check.what
