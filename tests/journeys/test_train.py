"""`heedful train` end to end: from text files to an evaluated model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.data.dates_corpus import write_dates

SMALL = (
    "tokenizer.kind=characters",
    "model.width=32",
    "model.heads=2",
    "model.layers=1",
    "training.batch_tokens=1024",
    "training.evaluate_every=20",
    "training.warmup=5",
)
PROSE = "The cat sat on the mat. The dog sat on the log.\nA cat and a dog sat and sat.\n" * 150


def settings(*changes: str) -> list[str]:
    return [word for change in (*SMALL, *changes) for word in ("--set", change)]


@pytest.fixture(scope="module")
def dates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dates(tmp_path_factory.mktemp("dates"), train=600, valid=60, test=60)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_two_files_become_an_evaluated_model_and_the_recipe_reproduces_it(
    heedful_command: Any, dates: Path, tmp_path: Path
) -> None:
    files = [dates / "train.source", dates / "train.target"]
    valid = ["--valid", dates / "valid.source", "--valid", dates / "valid.target"]
    test = ["--test", dates / "test.source", "--test", dates / "test.target"]
    done = heedful_command(
        "train", "translate", *files, *valid, *test, "--steps", "40", "--out", "one", *settings(), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "one"
    names = {file.name for file in folder.iterdir()}
    assert names >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "recipe.toml",
        "card.md",
        "metrics.jsonl",
        "loss.png",
        "alignment.json",
        "confidence.json",
        "reliability.png",
    }

    again = heedful_command("train", "translate", "--recipe", folder / "recipe.toml", "--out", "two", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    one, two = (heedful.load(tmp_path / name).model.state_dict() for name in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one), "the same recipe gives the same model, bit for bit"
    for name in ("alignment.json", "confidence.json"):
        assert (folder / name).read_text() == (tmp_path / "two" / name).read_text(), "and the same calibration"
    trained = heedful.load(folder)
    assert trained.alignment is not None
    assert trained.alignment.units == ("words", "characters"), "2015-07-01 is one word"
    assert trained.alignment.pairs == 30
    assert trained.confidence is not None
    assert trained.confidence.unit == "characters"

    assert "verdict    not usable: " in done.stderr
    assert "next       heedful train --recipe one/recipe.toml --steps " in done.stderr
    one, two = map(json.loads, heedful_command("runs", "--json", cwd=tmp_path).stdout.splitlines())
    assert (one["folder"], two["folder"]) == ("one", "two")
    assert one["checksums"] == two["checksums"]
    assert one["scores"]["bleu"] == two["scores"]["bleu"]
    assert one["is_useful"] is False

    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [event["loss"] for event in events if event["kind"] == "step"]
    assert losses[-1] < losses[0]
    card = (folder / "card.md").read_text()
    assert "nrefs:1" in card, "BLEU is reported with its signature"
    assert "600 examples" in card.replace(",", "")
    assert f"Words are aligned by {trained.alignment}" in card

    scored = heedful_command("evaluate", "one", dates / "test.source", dates / "test.target", "--json", cwd=tmp_path)
    scores = json.loads(scored.stdout)
    assert scores["texts"] == 60
    assert scores["bleu_low"] <= scores["bleu"] <= scores["bleu_high"] + 1e-9
    for name in ("character_calibration_error", "token_calibration_error"):
        assert 0 <= scores[name] <= 1
    assert f"| character_calibration_error | {scores['character_calibration_error']:.4g} |" in card
    assert "warnings" not in scores
    seen = heedful_command("evaluate", "one", *files, cwd=tmp_path)
    assert f"{files[1]} is text this model was trained on" in seen.stderr
    swapped = heedful_command("evaluate", "one", dates / "test.target", dates / "test.source", cwd=tmp_path)
    assert "are the files in the wrong order?" in swapped.stderr.lower(), swapped.stdout


@pytest.fixture(scope="module")
def first(dates: Path, tmp_path_factory: pytest.TempPathFactory) -> heedful.TrainedModel:
    """A model trained for a moment, without validation files."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEEDFUL_CACHE", str(folder / "cache"))
        return heedful.train(
            "translate",
            dates / "train.source",
            dates / "train.target",
            out=str(folder / "run"),
            steps=4,
            settings=(*SMALL, "data.held_out=0.03"),
            device="cpu",
        )


def test_without_validation_files_some_pairs_are_held_out(first: heedful.TrainedModel) -> None:
    assert first.translate("3 May 2020") is not None
    assert first.folder is not None
    assert "validation" in (first.folder / "card.md").read_text()


def test_a_model_is_evaluated_from_python(first: heedful.TrainedModel, dates: Path, tmp_path: Path) -> None:
    files = (dates / "test.source", dates / "test.target")
    scores = heedful.evaluate(first, *files, beam=1, bleu_tokenizer="char")
    assert scores["texts"] == 60
    assert "tok:char" in scores["bleu_signature"]
    assert first.training_text is not None
    assert len(first.training_text.train) == 2
    assert heedful.load(first.save(tmp_path / "copy")).training_text == first.training_text
    with pytest.raises(heedful.UsageError, match="name the held-out files"):
        heedful.evaluate(first)


@pytest.mark.slow
def test_recurrent_models_and_language_models_are_trained(dates: Path, tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text(PROSE)
    recurrent = (
        "tokenizer.kind=characters",
        "model.width=32",
        "training.batch_tokens=512",
        "training.evaluate_every=10",
    )
    pair = (dates / "train.source", dates / "train.target")
    for attention in ("none", "additive"):
        trained = heedful.train(
            "translate", *pair, architecture="recurrent", steps=2, out=str(tmp_path / attention), device="cpu",
            settings=(*recurrent, f"model.attention={attention}"),
        )  # fmt: skip
        assert trained.model.config.attention == attention
        assert (tmp_path / attention / "alignment.json").exists() == (attention != "none")
        assert (tmp_path / attention / "confidence.json").exists()
    for architecture in ("transformer", "recurrent"):
        sized = recurrent if architecture == "recurrent" else SMALL
        trained = heedful.train(
            "generate", book, architecture=architecture, steps=6, out=tmp_path / architecture, device="cpu",
            settings=(*sized, "training.context=32"),
        )  # fmt: skip
        assert trained.generate("The cat", max_length=5, seed=1) == trained.generate("The cat", max_length=5, seed=1)
        assert "bits_per_byte" in (tmp_path / architecture / "card.md").read_text()
        assert not (tmp_path / architecture / "confidence.json").exists(), "only translators have one"


def test_the_tokenizer_is_not_trained_on_held_out_text(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text(PROSE + "Ω" * 40 + "\n" + "Z" * 40 + "\n")
    trained = heedful.train(
        "generate", book, steps=1, out=str(tmp_path / "run"), settings=(*SMALL, "training.context=32"), device="cpu"
    )
    known = trained.tokenizers[0].pieces(range(len(trained.tokenizers[0])))
    assert "T" in known
    assert "Ω" not in known


def test_fine_tuning_starts_from_the_weights_of_a_model(
    first: heedful.TrainedModel, dates: Path, tmp_path: Path
) -> None:
    pair = (dates / "train.source", dates / "train.target")
    second = heedful.train(
        "translate", *pair, steps=1, out=str(tmp_path / "second"), start_from=str(first.folder), device="cpu",
        settings=(*SMALL, "training.learning_rate=1e-8", "training.average=none"),
    )  # fmt: skip
    for name, weight in first.model.state_dict().items():
        torch.testing.assert_close(second.model.state_dict()[name], weight, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_fine_tuning_keeps_the_vocabulary(heedful_command: Any, dates: Path, tmp_path: Path) -> None:
    pair = (dates / "train.source", dates / "train.target")
    settings = (*SMALL, "tokenizer.kind=byte_bpe", "tokenizer.vocabulary=400", "tokenizer.lowercase=true")
    first = heedful.train("translate", *pair, steps=2, out=str(tmp_path / "first"), settings=settings, device="cpu")
    lines = [f"{number} green bottles hanging on the wall" for number in range(300)]
    for name, change in (("new.en", str), ("new.xx", str.upper)):
        (tmp_path / name).write_text("".join(f"{change(line)}\n" for line in lines))
    new = ("new.en", "new.xx", "--from", "first", "--steps", "2", "--out", "second", "--set", "model.dropout=0.25")
    done = heedful_command("train", "translate", *new, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    second = heedful.load(tmp_path / "second")
    assert second.tokenizers == first.tokenizers
    assert second.model.config.dropout == 0.25
    recipe = (tmp_path / "second" / "recipe.toml").read_text()
    assert 'kind = "byte_bpe"' in recipe
    assert "lowercase = true" in recipe
    again = heedful_command("train", "translate", "--recipe", "second/recipe.toml", "--out", "third", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    third = heedful.load(tmp_path / "third").model.state_dict()
    assert all(torch.equal(third[name], weight) for name, weight in second.model.state_dict().items())


def test_fine_tuning_from_an_unsuitable_model_is_one_clear_line(
    heedful_command: Any, first: heedful.TrainedModel, dates: Path, tmp_path: Path
) -> None:
    pair = (dates / "train.source", dates / "train.target")
    book = tmp_path / "book.txt"
    book.write_text(PROSE)
    cases = (
        (["generate", book], 2, "an encoder_decoder for translate, not generate"),
        (["translate", *pair, "--set", "model.width=64"], 2, "model.width=64 (it has 32)"),
        (["translate", *pair, "--set", "tokenizer.kind=unigram"], 2, "tokenizer.kind is characters, not unigram"),
        (["translate", *pair, "--set", "tokenizer.joint=false"], 2, "tokenizer.joint is True, not False"),
        (["translate", *pair, "--model", "recurrent"], 2, "leave out --model recurrent"),
    )
    for arguments, code, words in cases:
        start = ("--from", str(first.folder), "--steps", "1", "--out", "no")
        done = heedful_command("train", *arguments, *start, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        assert words in done.stderr.splitlines()[-1]
        assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["train", "translat", "a", "b"], 2, "did you mean 'translate'"),
        (["train", "translate"], 2, "nothing to train on"),
        (["train", "translate", "no.en", "no.de"], 3, "no.en"),
        (["train", "translate", "a", "b", "--valid", "c", "d"], 2, "--valid c --valid FILE"),
        (["train", "translate", "a", "b", "--out", "c", "--resume", "d"], 2, "give only --resume d"),
        (["train", "generate", "book.txt", "--set", "model.widht=4"], 2, "did you mean 'model.width'"),
        (["train", "generate", "book.txt", "--set", "model.width=33"], 2, "33"),
        (["train", "generate", "book.txt", "--time", "soon"], 2, "10m"),
        (["train", "generate", "book.txt", "--device", "tpu"], 2, "cuda"),
        (["train", "generate", "book.txt", "--out", "full"], 2, "not empty"),
        (["train", "generate", "book.txt", "--model", "recurent"], 2, "recurrent"),
        (["train", "generate", "bad.txt"], 3, "bad.txt:2"),
        (["train", "generate", "empty.txt"], 3, "empty.txt"),
        (["doctor", "book.txt", "bad.txt", "--as", "pairs"], 3, "book.txt has 300 lines but bad.txt has 2"),
        (["doctor", "a.en", "a.de", "--against", "dev.en", "dev.de"], 2, "--against dev.en --against dev.de"),
        (["evaluate", "nowhere", "book.txt"], 4, "nowhere"),
    ],
)
def test_a_usage_error_is_one_line_an_exit_code_and_no_files(
    heedful_command: Any, arguments: list[str], code: int, words: str, tmp_path: Path
) -> None:
    (tmp_path / "book.txt").write_text(PROSE)
    (tmp_path / "bad.txt").write_bytes(b"fine\nbroken \xff\xfe\n")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").touch()
    before = {file.name for file in tmp_path.iterdir()} | {"cache"}
    done = heedful_command(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("heedful: ")]
    assert len(errors) == 1
    assert {file.name for file in tmp_path.iterdir()} <= before, "a run that did not start leaves no files"


def test_commands_are_registered_without_importing_torch() -> None:
    code = "import sys; from heedful.cli import commands; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
