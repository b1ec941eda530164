"""`heedful train fill` and `heedful fill` as typed in a shell."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import heedful

SMALL = (
    "tokenizer.kind=words",
    "model.width=32",
    "model.heads=2",
    "model.layers=2",
    "training.batch_tokens=1024",
    "training.context=16",
    "training.evaluate_every=100",
    "training.warmup=10",
    "training.learning_rate=1e-2",
)
COLORS = {"grass": "green", "sky": "blue", "snow": "white", "coal": "black", "blood": "red"}


KILL_AT_STEP_8 = """
import os
from heedful.training.checkpoint.checkpointer import Checkpointer

after = Checkpointer.after_step

def killed_after_step(self, stop):
    if self.trainer.progress.step == 8:
        os.kill(os.getpid(), 9)
    after(self, stop)

Checkpointer.after_step = killed_after_step
"""


def settings(*changes: str) -> list[str]:
    return [word for change in (*SMALL, *changes) for word in ("--set", change)]


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of two sentences each, whose colors and next sentences can be predicted."""
    file = tmp_path_factory.mktemp("book") / "book.txt"
    nouns = list(COLORS.items()) * 60
    random.Random(0).shuffle(nouns)
    file.write_text("".join(f"The {noun} was {color}. So {color} is {noun}.\n\n" for noun, color in nouns))
    return file


@pytest.fixture(scope="module")
def model(fork_server: Any, book: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    done = fork_server.run("train", "fill", book, "--steps", "200", "--out", "run", *settings(), folder=folder)
    assert done.code == 0, done.output
    return folder / "run"


def test_a_trained_model_fills_masks(heedful_command: Any, model: Path, tmp_path: Path) -> None:
    plain = heedful_command("fill", model, "The grass was [MASK].", "--top", "2", cwd=tmp_path)
    assert plain.returncode == 0, plain.stderr
    first, probability, _, smaller = plain.stdout.rstrip("\n").split("\t")
    assert first == "green"
    assert float(probability) > float(smaller)
    (tmp_path / "in.txt").write_text("So [MASK] is coal.\n\nThe [MASK] was [MASK].\n")
    lines = heedful_command("fill", model, "--input", "in.txt", "--output", "out.txt", "--json", cwd=tmp_path)
    assert lines.returncode == 0, lines.stderr
    answers = [json.loads(line) for line in (tmp_path / "out.txt").read_text().splitlines()]
    assert [len(answer["guesses"]) for answer in answers] == [1, 0, 2]
    assert answers[0]["guesses"][0][0]["word"] == "black"
    assert answers[0]["filled"] == "So black is coal."
    card = (model / "card.md").read_text()
    assert "fills in masked words" in card
    assert "| accuracy |" in card
    assert "[MASK]" in card.split("## Samples")[1], "a sentence, the model's words, the masked word"
    config = json.loads((model / "config.json").read_text())
    assert config["tasks"] == ["masked_token"]
    assert config["max_length"] == 16


def test_evaluate_is_deterministic(heedful_command: Any, model: Path, book: Path, tmp_path: Path) -> None:
    once, again = (heedful_command("evaluate", model, book, "--json", cwd=tmp_path).stdout for _ in range(2))
    assert once == again
    scores = json.loads(once)
    assert scores["accuracy"] > 0.5
    assert "next_sentence_accuracy" not in scores


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["fill", "MODEL", "The grass was green."], 2, "no [MASK] to fill in 'The grass was green.'"),
        (["fill", "MODEL", "We saw the " * 20 + "[MASK]"], 2, "is longer than this model's 16"),
        (["fill", "MODEL", "a [MASK]", "--input", "lines.txt"], 2, "give one or the other"),
        (["fill", "MODEL", "--input", "lines.txt"], 2, "line 2: there is no [MASK]"),
        (["fill", "writer", "a [MASK]"], 2, "is a language model"),
        (["train", "fill", "book.txt", "--model", "recurrent"], 2, "leave out --model recurrent"),
        (["train", "generate", "book.txt", "--next-sentence"], 2, "is for fill, not generate"),
        (["train", "fill", "one.txt", "--next-sentence", "--steps", "1"], 3, "a blank line ends a document"),
        (["train", "fill", "book.txt", "--from", "MODEL", "--next-sentence"], 2, "leave out --next-sentence"),
        (
            ["train", "fill", "book.txt", "--set", "training.mask_probability=1.5"],
            2,
            "mask_probability: input should be less than 0.9",
        ),
    ],
)
def test_a_usage_error_is_one_line_and_an_exit_code(
    heedful_command: Any, arguments: list[str], code: int, words: str, model: Path, book: Path, tmp_path: Path
) -> None:
    (tmp_path / "book.txt").write_text(book.read_text())
    (tmp_path / "one.txt").write_text("The sky was blue. It was. And so on it went.\n" * 50)
    (tmp_path / "lines.txt").write_text("A [MASK].\nNone.\n")
    if "writer" in arguments:
        writer = heedful.build("laptop-writer", width=16, layers=1, heads=2, vocabulary=20)
        heedful.save(writer, tmp_path / "writer")
    done = heedful_command(*(model if word == "MODEL" else word for word in arguments), cwd=tmp_path)
    assert done.returncode == code, done.stderr
    line = done.stderr.rstrip().splitlines()[-1]
    assert words in line
    assert "Traceback" not in done.stderr


def test_a_line_without_a_mask_can_be_skipped(heedful_command: Any, model: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("The [MASK] was blue.\nNone.\nSo [MASK] is snow.\n")
    done = heedful_command("fill", model, "--input", "lines.txt", "--on-bad-line", "skip", "--top", "1", cwd=tmp_path)
    assert done.returncode == 0
    first, second, third = done.stdout.splitlines()
    assert (first.split()[0], second, third.split()[0]) == ("sky", "", "white")
    assert "line 2: left empty: there is no [MASK]" in done.stderr


def test_next_sentence_prediction_is_planned_trained_resumed_and_scored(
    fork_server: Any, heedful_command: Any, book: Path, tmp_path: Path
) -> None:
    arguments = [book, "--next-sentence", "--steps", "12", "--device", "cpu"]
    arguments += settings("training.checkpoint_every=5", "model.dropout=0.1", "training.whole_word_masking=true")
    plan = heedful_command("plan", "fill", *arguments, "--json", cwd=tmp_path)
    assert plan.returncode == 0, plan.stderr
    assert 0 < json.loads(plan.stdout)["labels"] <= 0.15 * 1024
    whole = fork_server.run("train", "fill", *arguments, "--out", "whole", folder=tmp_path)
    assert whole.code == 0, whole.output
    assert "next-sentence accuracy" in whole.output
    again = ["--recipe", "whole/recipe.toml", "--out", "killed", "--device", "cpu"]
    killed = fork_server.run("train", "fill", *again, folder=tmp_path, before=KILL_AT_STEP_8)
    assert killed.code == -9, killed.output
    resumed = fork_server.run("train", "--resume", "killed", folder=tmp_path)
    assert resumed.code == 0, resumed.output
    assert "resuming after step 5 of 12" in resumed.output
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert files[0] == files[1], "set by the recipe, and unchanged by the kill"
    config = heedful.load(tmp_path / "killed").model.config
    assert (config.tasks, config.segments) == (("masked_token", "next_sentence"), 2)
    scores = json.loads(heedful_command("evaluate", "killed", book, "--json", cwd=tmp_path).stdout)
    assert scores["pairs"] > 50
    assert 0 < scores["next_sentence_accuracy"] < 1
    recipe = (tmp_path / "killed" / "recipe.toml").read_text()
    assert "next_sentence = true" in recipe
    assert "whole_word_masking = true" in recipe
