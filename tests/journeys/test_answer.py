"""`heedful train answer` and `heedful answer` as typed in a shell."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful

NAMES = ("Ada", "Bela", "Carl", "Dora", "Emil", "Fritz", "Gerda", "Hugo")
TOWNS = ("Köln", "New York", "Rome", "St. Gallen", "Oslo", "Łódź", "Paris", "Bonn")
SMALL = (
    "tokenizer.kind=words",
    "model.width=32",
    "model.heads=2",
    "model.layers=2",
    "model.dropout=0.0",
    "data.max_length=40",
    "data.stride=12",
    "training.batch_tokens=2048",
    "training.evaluate_every=20",
    "training.warmup=5",
    "training.learning_rate=0.01",
)
SETTINGS = [word for change in SMALL for word in ("--set", change)]


def squad(count: int, seed: int, *, unanswerable: bool = True) -> dict[str, Any]:
    """Questions about who lives where; some have no answer in the passage."""
    generator = random.Random(seed)
    paragraphs = []
    for number in range(count):
        people, towns = generator.sample(NAMES, 7), generator.sample(TOWNS, 7)
        count_told = 5 if unanswerable else 7
        homes = dict(zip(people, towns, strict=True))
        context = " ".join(f"{name} lives in {homes[name]}, they say." for name in people[:count_told])
        questions = []
        for index, name in enumerate(people[:count_told][:2] + people[count_told:]):
            known = name in people[:count_told]
            answers = [{"text": homes[name], "answer_start": context.index(homes[name])}] if known else []
            questions.append(
                {
                    "id": f"{number}-{index}",
                    "question": f"Where does {name} live?",
                    "answers": answers,
                    "is_impossible": not known,
                }
            )
        paragraphs.append({"context": context, "qas": questions})
    return {"version": "v2.0", "data": [{"title": "towns", "paragraphs": paragraphs}]}


@pytest.fixture(scope="module")
def towns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("towns")
    (folder / "train.json").write_text(json.dumps(squad(60, 1)))
    (folder / "dev.json").write_text(json.dumps(squad(20, 2)))
    return folder


@pytest.fixture(scope="module")
def model(fork_server: Any, towns: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    words = ["train", "answer", towns / "train.json", "--valid", towns / "dev.json", *SETTINGS, "--device", "cpu"]
    done = fork_server.run(*words, "--steps", "40", "--out", "run", folder=folder)
    assert done.code == 0, done.output
    return folder / "run"


def test_a_model_trained_on_squad_is_scored_and_gives_character_positions(
    heedful_command: Any, towns: Path, model: Path, tmp_path: Path
) -> None:
    card = (model / "card.md").read_text()
    assert "240 questions in " in card
    assert '.answer("question", "passage")' in card
    assert "| correct_unanswerable |" in card, "unanswerable questions are scored by the second edition's rule"
    assert heedful.load(model).settings.threshold is not None
    scored = heedful_command("evaluate", model, towns / "dev.json", "--json", cwd=tmp_path)
    assert scored.returncode == 0, scored.stderr
    scores = json.loads(scored.stdout)
    assert (scores["questions"], scores["unanswerable"]) == (80, 40)
    assert scores["best_f1"] >= scores["f1"] >= scores["exact_match"] >= 0

    passage = "Ada lives in  Köln, they say. " + "Hugo lives in Rome, they say. " * 20  # several windows
    ask = ["answer", model, "--question", "Where does Ada live?", "--passage", passage]
    result = heedful_command(*ask, "--json", "--top", "3", "--threshold", "-1000", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert passage[answer["start"] : answer["end"]] == answer["answer"]
    assert len(answer["alternatives"]) == 2
    assert answer["probability"] >= answer["alternatives"][0]["probability"]
    plain = heedful_command(*ask, "--threshold", "-1000", cwd=tmp_path)
    text, position, score, _ = plain.stdout.rstrip("\n").split("\t")
    assert (text, position) == (" ".join(answer["answer"].split()), f"{answer['start']}-{answer['end']}")
    assert float(score) == pytest.approx(answer["score"], abs=0.01)
    none = heedful_command(*ask, "--threshold", "1000", cwd=tmp_path)
    assert none.stdout.startswith("no answer\t\t")


def test_a_file_of_questions_gives_one_answer_each(
    heedful_command: Any, towns: Path, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text(
        json.dumps({"id": "a", "question": "Where does Ada live?", "passage": "Ada lives in Rome, they say."})
        + "\n"
        + json.dumps({"question": "Where does Carl live?", "context": "Carl lives in Bonn, they say."})
        + "\n"
    )
    done = heedful_command("answer", model, "--input", "in.jsonl", "--output", "out.jsonl", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [answer["id"] for answer in answers] == ["a", "2"]
    (tmp_path / "in.csv").write_text(
        f"question,passage\nWhere does Ada live?,Ada lives in Rome\n{'Where ' * 60},Rome\n"
    )
    stopped = heedful_command("answer", model, "--input", "in.csv", cwd=tmp_path)
    assert (stopped.returncode, "in.csv:3: question '3': a question of" in stopped.stderr) == (3, True), stopped.stderr
    skipped = heedful_command("answer", model, "--input", "in.csv", "--on-bad-line", "skip", cwd=tmp_path)
    assert (skipped.returncode, len(skipped.stdout.splitlines())) == (0, 1)
    assert "line 3: question '3' is left out" in skipped.stderr
    whole = heedful_command("answer", model, "--input", towns / "dev.json", cwd=tmp_path)
    assert len(whole.stdout.splitlines()) == 80
    trained = heedful.load(model)
    answer = trained.answer("Where does Ada live?", "Ada lives in Rome, they say.", threshold=-1000.0)
    (passage := tmp_path / "passage.txt").write_text("Ada lives in Rome, they say.")
    same = heedful_command(
        "answer", model, "--question", "Where does Ada live?", "--passage-file", passage, "--threshold", "-1000",
        cwd=tmp_path,
    )  # fmt: skip
    assert same.stdout.split("\t")[0] == answer.text


def test_a_resumed_run_gives_bitwise_the_same_model(fork_server: Any, tmp_path: Path) -> None:
    (tmp_path / "towns.json").write_text(json.dumps(squad(60, 4, unanswerable=False)))
    often = ("--set", "training.checkpoint_every=3", "--device", "cpu")
    words = ["train", "answer", "towns.json", *SETTINGS, *often]
    kill = """
import os
from heedful.training.trainer import Trainer
step, fit = Trainer.step, Trainer.fit
def killed_step(self, stream):
    if getattr(self, "live", False) and self.progress.step == 7:
        os.kill(os.getpid(), 9)
    return step(self, stream)
def live_fit(self, *arguments, **options):
    self.live = True
    return fit(self, *arguments, **options)
Trainer.step, Trainer.fit = killed_step, live_fit
"""
    straight = fork_server.run(*words, "--steps", "10", "--out", "straight", folder=tmp_path)
    assert straight.code == 0, straight.output
    broken = fork_server.run(*words, "--steps", "10", "--out", "broken", folder=tmp_path, before=kill)
    assert broken.code == -9, broken.output
    resumed = fork_server.run("train", "--resume", "broken", folder=tmp_path)
    assert resumed.code == 0, resumed.output
    uninterrupted, resumed_model = (heedful.load(tmp_path / name) for name in ("straight", "broken"))
    weights = resumed_model.model.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in uninterrupted.model.state_dict().items())
    assert uninterrupted.settings == resumed_model.settings
    assert uninterrupted.settings.threshold is None, "if every question has an answer, one is always given"


def broken(**changes: Any) -> str:
    whole = squad(2, 3)
    record = whole["data"][0]["paragraphs"][0]["qas"][0]
    record.update(changes)
    return json.dumps(whole)


def test_invalid_data_is_one_line(heedful_command: Any, tmp_path: Path) -> None:
    cases = {
        "span.json": (broken(answers=[{"text": "Atlantis", "answer_start": 3}]), 3, "'Atlantis' is not in its passage"),
        "keys.json": (broken(answers=[{"text": "Rome"}]), 3, "'answer_start' of an answer is missing"),
        "long.json": (broken(question="Where " * 60), 3, "leaves no room for its passage in windows of 40 tokens"),
        "shape.json": ("{}", 3, "has no list 'data'"),
    }
    for name, (text, code, message) in cases.items():
        (tmp_path / name).write_text(text)
        done = heedful_command("train", "answer", name, *SETTINGS, "--steps", "1", "--out", "run", cwd=tmp_path)
        assert (done.returncode, message in done.stderr) == (code, True), done.stderr
        assert len([line for line in done.stderr.splitlines() if line.startswith("heedful: ")]) == 1
        assert "Traceback" not in done.stderr
    off = ("--set", "data.stride=0")
    (tmp_path / "whole.json").write_text(json.dumps(squad(2, 3)))
    done = heedful_command("train", "answer", "whole.json", *SETTINGS, *off, "--steps", "1", cwd=tmp_path)
    assert (done.returncode, "windows are off: set a stride above 0" in done.stderr) == (3, True), done.stderr


def test_a_usage_error_is_one_line(heedful_command: Any, model: Path, tmp_path: Path) -> None:
    arguments = ["answer", model, "--question", "Where?"]
    cases = [
        ([*arguments, "--passage", " "], 2, "the passage is empty"),
        (["answer", model, "--question", "", "--passage", "x"], 2, "the question is empty"),
        (["answer", model], 2, "there is no question"),
        ([*arguments, "--passage", "x", "--passage-file", "x.txt"], 2, "give one of them"),
        ([*arguments, "--passage-file", "no.txt"], 3, "no such file"),
        ([*arguments, "--passage", "x " * 100, "--stride", "0"], 3, "windows are off"),
        ([*arguments, "--input", "some.jsonl"], 2, "give one or the other"),
        (["translate", model, "x"], 2, "use heedful answer"),
        (["answer", model, "--question", "Where " * 60, "--passage", "x"], 3, "leaves no room"),
    ]
    for words, code, message in cases:
        done = heedful_command(*words, cwd=tmp_path)
        assert (done.returncode, message in done.stderr) == (code, True), (words, done.stderr)
        assert "Traceback" not in done.stderr


def test_the_doctor_counts_questions_and_names_wrong_spans(heedful_command: Any, tmp_path: Path) -> None:
    (tmp_path / "span.json").write_text(broken(answers=[{"text": "Atlantis", "answer_start": 3}]))
    done = heedful_command("doctor", "span.json", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["kind"], report["usable"], report["rows"]) == ("questions", 7, 8)
    assert next(finding["count"] for finding in report["findings"] if finding["kind"] == "span") == 1
    cleaned = heedful_command("doctor", "span.json", "--write", "clean", cwd=tmp_path)
    assert cleaned.returncode == 0, cleaned.stderr
    again = heedful_command("doctor", "clean/span.json", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["rows"] == 7
