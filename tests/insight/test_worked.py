"""Worked examples: correct numbers, misprints found where they were made, wrong files refused."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest
import torch
from latex2mathml.converter import convert

import limelight as ll
from limelight.cli import main
from limelight.errors import FileError, LimelightError, OptionError
from limelight.insight.worked.parsing import EXAMPLES, known_examples, worked
from limelight.insight.worked.rendering import FORMATS
from limelight.insight.worked.slides import save_slides, slides
from limelight.insight.worked.writing import toml

SMALL = """
tokens = ["a", "b"]
x = [[1, 0], [0, 2]]
w_query = [[1, 0], [0, 1]]
w_key = [[1, 0], [0, 1]]
w_value = [[1, 0], [0, 1]]
"""
TWO_LAYERS = """
tokens = ["a", "b"]
x = [[1, 0.5], [0.2, 2]]
[[layers]]
mask = "causal"
residual = true
w_query = [[1, 0], [0, 1]]
w_key = [[1, 1], [0, 1]]
w_value = [[1, 0], [0, 1]]
[[layers]]
scale = false
w_output = [[1, 0, 1], [0, 1, 1]]
[[layers.heads]]
w_query = [[1], [0]]
w_key = [[1], [1]]
w_value = [[1], [0]]
[[layers.heads]]
w_query = [[1], [2]]
w_key = [[0], [1]]
w_value = [[1], [1]]
"""


def example_file(folder: Path, text: str) -> Path:
    path = folder / "example.toml"
    path.write_text(text, encoding="utf-8")
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """The exit code, the output and the errors of a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["limelight", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            main()
    code = exit_info.value.code
    return (code if isinstance(code, int) else 0), *capsys.readouterr()


def test_the_steps_are_what_plain_arithmetic_gives() -> None:
    steps = {step.name: step.table for step in worked().steps()}
    query = [[1.2, 0.6], [1.0, 1.1], [1.1, 0.7], [0.4, 1.3]]
    key = [[1.1, 0.7], [0.9, 1.2], [0.6, 1.2], [1.2, 0.5]]
    assert torch.allclose(steps["query"], torch.tensor(query, dtype=torch.float64))
    assert torch.allclose(steps["key"], torch.tensor(key, dtype=torch.float64))
    by_hand = torch.softmax(steps["query"] @ steps["key"].T / 2**0.5, dim=1)
    assert torch.allclose(steps["weights"], by_hand)
    assert torch.allclose(steps["output"], by_hand @ steps["value"])


def test_layers_heads_mask_scale_and_residual_by_plain_arithmetic(tmp_path: Path) -> None:
    example = worked(example_file(tmp_path, TWO_LAYERS))
    steps = {(step.layer, step.head, step.name): step.table for step in example.steps()}
    x = torch.tensor([[1, 0.5], [0.2, 2]], dtype=torch.float64)
    scores = x @ (x @ torch.tensor([[1.0, 1], [0, 1]]).double()).T / 2**0.5
    weights = scores.masked_fill(torch.ones(2, 2).triu(1).bool(), -torch.inf).softmax(1)
    between = x + weights @ x
    assert torch.allclose(steps[1, None, "sum"], between)
    heads = [
        ((between @ q) @ (between @ k).T).softmax(1) @ (between @ v)
        for q, k, v in (
            torch.tensor([[[1], [0]], [[1], [1]], [[1], [0]]]).double(),
            torch.tensor([[[1], [2]], [[0], [1]], [[1], [1]]]).double(),
        )
    ]
    concatenated = torch.cat(heads, 1)
    mixed = concatenated @ torch.tensor([[1.0, 0, 1], [0, 1, 1]]).double()
    assert torch.allclose(steps[2, None, "concatenation"], concatenated)
    assert torch.allclose(steps[2, None, "output"], mixed)
    assert "scaled" not in {name for layer, _, name in steps if layer == 2}


def test_the_audit_finds_every_slip_where_it_was_made() -> None:
    audit = worked().audit()
    assert Counter(slip.step for slip in audit.mismatches) == {"key": 7, "value": 6, "scores": 2}
    scores = {(slip.token, slip.column): slip for slip in audit.mismatches if slip.step == "scores"}
    love, phones = scores["love", "phones"], scores["phones", "phones"]
    assert (love.printed, love.follows_text) == ("1.96", "1.63")
    assert (phones.printed, phones.follows_text) == ("1.91", "0.91")
    assert audit.checked == 64
    assert not audit.passed


def test_written_examples_read_back_and_pass_the_audit(tmp_path: Path) -> None:
    for example in [*map(worked, known_examples()), worked(example_file(tmp_path, TWO_LAYERS))]:
        for decimals in (2, 3, 6):
            again = worked(example_file(tmp_path, toml(example, decimals=decimals)))
            assert again.audit().passed, (example.title, decimals, again.audit().mismatches)
        blank = worked(example_file(tmp_path, toml(example, blank=True))).audit()
        assert blank.open > 0
        assert (blank.mismatches, blank.checked, blank.passed) == ((), 0, False)


def test_every_wrong_digit_is_found(tmp_path: Path) -> None:
    """Some printed numbers, each in turn raised by 2 in its last digit, are named as misprints."""
    text = toml(worked("two-heads"), decimals=3)
    cells = list(re.finditer(r"\d+\.\d+(?= |\")", text))
    assert len(cells) > 150
    for cell in cells[::7]:
        decimals = len(cell.group().partition(".")[2])
        wrong = f"{float(cell.group()) + 2 * 10**-decimals:.{decimals}f}"
        changed = text[: cell.start()] + wrong + text[cell.end() :]
        mismatches = worked(example_file(tmp_path, changed)).audit().mismatches
        assert wrong in [mismatch.printed for mismatch in mismatches], (cell.group(), mismatches)


def test_a_later_step_alone_is_audited(tmp_path: Path) -> None:
    right = worked(
        example_file(tmp_path, SMALL + '[printed]\nweights = ["0.670 0.330", "0.056 0.944"]')
    )
    assert right.audit().passed
    wrong = worked(example_file(tmp_path, SMALL + '[printed]\noutput = ["0.7 0.7", "0.1 1.8"]'))
    assert [(slip.token, slip.column) for slip in wrong.audit().mismatches] == [("b", "2")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tokens = [", "not TOML"),
        ("x = [[1]]", "tokens is missing"),
        ('tokens = ["a"]\nx = [[1, 2], [2]]', "x must be rows of numbers, all of one length"),
        ('tokens = ["a", "b"]\nx = [[1], ["2"]]', "x row 2 must be numbers, found '2'"),
        ('tokens = ["a"]\nx = [[nan]]', "x row 1 must be numbers of at most"),
        ('tokens = ["a"]\nx = [[true]]', "x row 1 must be numbers, found True"),
        ('tokens = ["a"]\nx = [[1], [2]]', "x has 2 rows, expected 1, one for each token"),
        ("tokens = [1, 2]\nx = [[1], [2]]", "tokens: word 1 must be a text, found 1"),
        (SMALL.replace("w_key = [[1, 0], [0, 1]]", "w_key = [[1, 0]]"), "w_key has 1 rows"),
        (SMALL.replace("w_key = [[1, 0], [0, 1]]", ""), "w_key is missing"),
        (SMALL + 'maks = "causal"', "unknown key maks: did you mean mask?"),
        (SMALL + '[printed]\nfoo = ["1 2"]', "unknown key printed.foo"),
        (SMALL + "[printed]\nquery = [[1, 0], [0, 2]]", "printed.query row 1 .* in quotes"),
        (SMALL + '[printed]\nquery = ["1 x", "0 2"]', "printed.query row 1 must be numbers"),
        (SMALL + '[printed]\nquery = ["1 0"]', "query has 1 rows, expected 2, as the step has"),
        (SMALL + 'mask = "casual"', 'mask must be "causal" or rows of 0 and 1'),
        (SMALL + "mask = [[1, 2], [1, 1]]", "mask must be rows of 0 and 1"),
        (SMALL + "scale = -1", "scale must be true, false or a positive number"),
        (SMALL + 'residual = "yes"', "residual must be true or false"),
        (SMALL + "[[heads]]\nw_query = [[1], [0]]", r"w_query belongs in a table \[\[heads\]\]"),
        (SMALL + 'memory_tokens = ["c"]', "memory is missing"),
        (SMALL + "x" * 1_100_000 + " = 1", "expected at most 1048576"),
        (SMALL + ".".join("a" * 3000) + " = 1", "more than 64 parts"),
        (SMALL + "y = " + "[" * 9000, "nested too deeply|not TOML"),
        (SMALL + "scale = " + "9" * 6000, "not TOML|scale must be"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(FileError, match=words) as raised:
        worked(example_file(tmp_path, text))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


def test_damaged_files_give_an_example_or_one_line(tmp_path: Path) -> None:
    rng = random.Random(7)
    sources = [path.read_bytes() for path in sorted(EXAMPLES.glob("*.toml"))]
    refused: list[str] = []
    for _ in range(200):
        data = bytearray(rng.choice(sources))
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[place] = rng.randrange(256)
                case 1:
                    del data[place : place + rng.randrange(1, 40)]
                case 2:
                    data[place:place] = rng.choice([b"[", b'"', b"\n", b"9" * 30, b"[[1]]", b"-"])
                case _:
                    data[place:place] = data[: rng.randrange(60)]
        path = tmp_path / "damaged.toml"
        path.write_bytes(data)
        try:
            example = worked(path)
            example.to_json()
            str(example.audit())
        except LimelightError as error:
            refused.append(str(error))
    assert 50 < len(refused) < 200
    assert [line for line in refused if "\n" in line] == []


def test_missing_and_irregular_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="known: apple-phones, causal, cross, two-heads"):
        worked("pear-phones")
    with pytest.raises(FileError, match="expected a regular file"):
        worked(tmp_path)
    with pytest.raises(FileError, match="expected a regular file"):
        worked("/dev/zero")
    with pytest.raises(OptionError, match="cannot be the name of a file"):
        worked("a\0b")


HOSTILE = '"[/red]", "<script>|$\\\\u001b[2J"'


def test_tokens_are_text_in_every_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = example_file(tmp_path, SMALL.replace('"a", "b"', HOSTILE.replace("\\\\", "\\")))
    code, out, _ = run(capsys, "worked", path)
    assert code == 0
    assert "[/red]" in out
    for name, render in FORMATS.items():
        text = render(worked(path), 3)
        assert "\x1b" not in text
        assert ("<script>" not in text) or name == "latex"
    assert len(save_slides(worked(path), tmp_path / "slides")) == 8


def test_formats_hold_every_number() -> None:
    example = worked("two-heads")
    for render in FORMATS.values():
        text = render(example, 4)
        for step in example.steps():
            assert f"{float(step.table.flatten()[-1]):.4f}".rstrip("0").rstrip(".") in text
    latex = FORMATS["latex"](example, 3)
    assert latex.count(r"\begin{bmatrix}") == latex.count(r"\end{bmatrix}") > 20
    assert latex.count("{") == latex.count("}")
    for name in known_examples():  # pdflatex knows no subscript or superscript digits of Unicode
        assert {c for c in FORMATS["latex"](worked(name), 3) if ord(c) > 126} <= {"×"}


def test_latex_of_two_layers_parses(tmp_path: Path) -> None:
    """No symbol has two exponents and every brace is closed: each line converts to MathML."""
    latex = FORMATS["latex"](worked(example_file(tmp_path, TWO_LAYERS)), 3)
    lines = [line for line in latex.splitlines() if line.startswith(r"\[")]
    assert len(lines) > 20
    for line in lines:
        convert(line.removeprefix(r"\[").removesuffix(r"\]").strip())
    assert r"K^{(1)\top}" in latex
    assert r"S^{(1)} / \sqrt{2}" in latex


def test_text_fits_on_its_slide(tmp_path: Path) -> None:
    """The longest heading is that of a masked step in a layer; captions grow with the tokens."""
    tokens = [f"token{place}" for place in range(9)]
    long = SMALL.replace('["a", "b"]', str(tokens)).replace(
        "[[1, 0], [0, 2]]", str([[1.25, 0.375]] * 9), 1
    )
    (tmp_path / "long").mkdir()
    for path in (example_file(tmp_path, TWO_LAYERS), example_file(tmp_path / "long", long)):
        for name, figure in slides(worked(path), 3):
            for text in figure.texts:
                box = text.get_window_extent()
                assert 0 < box.x0 < box.x1 < figure.bbox.width or not text.get_text(), name


def test_check_lists_mismatches_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "worked", "apple-phones", "--check")
    assert code == 1
    assert re.search(r"love → phones +1\.96 +1\.63", out)
    assert re.search(r"phones → phones +1\.91 +0\.91", out)
    assert "with the right numbers" in out
    assert "O = A · V" in out
    for name in set(known_examples()) - {"apple-phones"}:
        assert run(capsys, "worked", name, "--check")[0] == 0
    code, _, errors = run(capsys, "worked", example_file(tmp_path, SMALL), "--check")
    assert code == 2
    assert "no [printed] table" in errors
    code, out, _ = run(capsys, "worked", "--check", "--json")
    assert code == 1
    assert len(json.loads(out)["audit"]["mismatches"]) == 15


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "pdf"], "--format must be one of text, markdown, latex, html, found 'pdf'"),
        (["--decimals", "13"], "--decimals must be 0 to 12, found 13"),
    ],
)
def test_a_wrong_option_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    code, _, errors = run(capsys, "worked", *arguments)
    assert code == 2
    assert words in errors


def test_an_exercise_is_made_filled_in_and_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("exercise", "--tokens", 3, "--size", 2, "--seed", 7, "--to", tmp_path)
    assert run(capsys, *options)[0] == 0
    sheet, solution = tmp_path / "exercise-3x2-7.toml", tmp_path / "exercise-3x2-7-solution.toml"
    code, out, _ = run(capsys, "worked", sheet, "--check")
    assert code == 1
    assert "51 cells are still open" in out
    assert "O = A · V" not in out
    answers = solution.read_text(encoding="utf-8")
    sheet.write_text(answers, encoding="utf-8")
    assert run(capsys, "worked", sheet, "--check")[0] == 0
    sheet.write_text(re.sub(r'(weights = \[\n  ")0\.\d+', r"\g<1>0.999", answers), encoding="utf-8")
    code, out, _ = run(capsys, "worked", sheet, "--check")
    assert code == 1
    assert "weights: birds → birds" in out
    # a sheet that may hold answers is not overwritten
    code, _, errors = run(capsys, *options)
    assert code == 2
    assert "may hold answers" in errors


@pytest.mark.parametrize(("tokens", "size", "heads", "mask"), [
    (2, 1, 1, "none"), (3, 2, 1, "causal"), (5, 3, 2, "none"), (6, 2, 1, "none"),
    (8, 6, 4, "causal"),
])  # fmt: skip
def test_exercises_have_simple_numbers(
    tokens: int, size: int, heads: int, mask: Literal["none", "causal"]
) -> None:
    for seed in range(2):
        first = ll.exercise(tokens, size, seed, heads=heads, mask=mask)
        again = ll.exercise(tokens, size, seed, heads=heads, mask=mask)
        assert first.solution() == again.solution()
        x = first.example.x
        assert torch.equal(x.round(decimals=1), x)
        for step in first.example.steps():
            if step.name == "scores":
                assert all(len(set(row)) == tokens for row in step.table.round(decimals=6).tolist())
            if step.name == "weights" and mask == "none":
                assert bool((step.table.amax(1) / step.table.amin(1) > 1.2).all())
