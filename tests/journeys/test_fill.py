"""From plain text to a model that fills gaps, through the real command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import heedful

SMALL = (
    "tokenizer.kind=words",
    "model.width=32",
    "model.heads=2",
    "model.layers=1",
    "training.batch_tokens=512",
    "training.context=32",
    "training.evaluate_every=20",
    "training.warmup=5",
    "training.learning_rate=5e-3",
)
SIDES = {"grass": "green", "sky": "blue", "snow": "white", "coal": "black", "blood": "red"}


DIE = """
import os
from heedful.training.keeper import Keeper

after = Keeper.after_step

def doomed(self, stop):
    if self.trainer.progress.step == 8:
        os.kill(os.getpid(), 9)
    after(self, stop)

Keeper.after_step = doomed
"""


def settings(*changes: str) -> list[str]:
    return [word for change in (*SMALL, *changes) for word in ("--set", change)]


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents about one thing each: what colour it is can be known, and so can what follows."""
    file = tmp_path_factory.mktemp("book") / "book.txt"
    things = list(SIDES.items()) * 40
    lines = (
        f"We saw the {thing} there. The {thing} was {colour}. So {colour} is {thing}.\n\n" for thing, colour in things
    )
    file.write_text("".join(lines))
    return file


@pytest.fixture(scope="module")
def model(book: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEEDFUL_CACHE", str(folder / "cache"))
        heedful.train("fill", book, steps=120, out=str(folder / "run"), settings=SMALL, device="cpu")
    return folder / "run"


def test_text_becomes_a_model_that_fills_gaps(heedful_command: Any, model: Path, tmp_path: Path) -> None:
    told = heedful_command("fill", model, "The grass was [MASK].", "--top", "2", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    first, second = told.stdout.rstrip("\n").split("\t")
    assert first.split()[0] == "green"
    assert float(first.split()[1]) > float(second.split()[1])
    (tmp_path / "in.txt").write_text("So [MASK] is coal.\n\nThe [MASK] was [MASK].\n")
    lines = heedful_command("fill", model, "--input", "in.txt", "--output", "out.txt", "--json", cwd=tmp_path)
    assert lines.returncode == 0, lines.stderr
    answers = [json.loads(line) for line in (tmp_path / "out.txt").read_text().splitlines()]
    assert [len(answer["guesses"]) for answer in answers] == [1, 0, 2]
    assert answers[0]["guesses"][0][0]["word"] == "black"
    assert answers[0]["filled"] == "So black is coal."
    card = (model / "card.md").read_text()
    assert "a model that fills gaps" in card
    assert "| accuracy |" in card
    assert "[MASK]" in card.split("## Samples")[1], "a sentence, what the model put, what stood there"
    config = json.loads((model / "config.json").read_text())
    assert config["tasks"] == ["masked_token"]
    assert config["max_length"] == 32


def test_scores_are_the_same_each_time_and_the_recipe_makes_the_model_again(
    heedful_command: Any, model: Path, book: Path, tmp_path: Path
) -> None:
    once, again = (heedful_command("evaluate", model, book, "--json", cwd=tmp_path).stdout for _ in range(2))
    assert once == again
    scores = json.loads(once)
    assert scores["accuracy"] > 0.5
    assert "next_sentence_accuracy" not in scores
    done = heedful_command("train", "fill", "--recipe", model / "recipe.toml", "--out", "two", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "two" / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


def test_next_sentences_are_learnt_scored_and_planned(heedful_command: Any, book: Path, tmp_path: Path) -> None:
    words = [book, "--next-sentence", "--steps", "20", *settings("training.whole_words=true")]
    plan = heedful_command("plan", "fill", *words, "--json", cwd=tmp_path)
    assert plan.returncode == 0, plan.stderr
    assert json.loads(plan.stdout)["labels"] == pytest.approx(0.15 * 512, rel=0.15)
    done = heedful_command("train", "fill", *words, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "next sentences told" in done.stderr + done.stdout
    trained = heedful.load(tmp_path / "run")
    assert trained.model.config.tasks == ("masked_token", "next_sentence")
    assert trained.model.config.segments == 2
    scores = json.loads(heedful_command("evaluate", "run", book, "--json", cwd=tmp_path).stdout)
    assert scores["pairs"] > 50
    recipe = (tmp_path / "run" / "recipe.toml").read_text()
    assert "next_sentence = true" in recipe
    assert "whole_words = true" in recipe


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["fill", "MODEL", "The grass was green."], 2, "no [MASK] to fill in 'The grass was green.'"),
        (["fill", "MODEL", "We saw the " * 20 + "[MASK]"], 2, "is longer than the 32 this model reads"),
        (["fill", "MODEL", "a [MASK]", "--input", "lines.txt"], 2, "give one or the other"),
        (["fill", "MODEL", "--input", "lines.txt"], 2, "line 2: there is no [MASK]"),
        (["fill", "MODEL", "a [MASK]", "--top", "100000"], 2, "words of the vocabulary, got 100000"),
        (["fill", "nowhere", "a [MASK]"], 4, "nowhere is not a model folder"),
        (["fill", "writer", "a [MASK]"], 2, "is a language model"),
        (["translate", "MODEL", "a"], 2, "fill"),
        (["train", "fill", "book.txt", "--model", "recurrent"], 2, "leave out --model recurrent"),
        (["train", "generate", "book.txt", "--next-sentence"], 2, "is for fill, not generate"),
        (["train", "fill", "one.txt", "--next-sentence", "--steps", "1"], 3, "a blank line ends a document"),
        (["train", "fill", "book.txt", "--set", "training.hidden=1.5"], 2, "training.hidden"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(
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


def test_a_line_that_cannot_be_filled_is_left_empty_if_wished(
    heedful_command: Any, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "lines.txt").write_text("The [MASK] was blue.\nNone.\nSo [MASK] is snow.\n")
    done = heedful_command("fill", model, "--input", "lines.txt", "--on-bad-line", "skip", "--top", "1", cwd=tmp_path)
    assert done.returncode == 0
    first, second, third = done.stdout.splitlines()
    assert (first.split()[0], second, third.split()[0]) == ("sky", "", "white")
    assert "line 2: left empty: there is no [MASK]" in done.stderr


def test_a_killed_run_resumes_to_the_same_bits(nursery: Any, book: Path, tmp_path: Path) -> None:
    words = ["train", "fill", book, "--next-sentence", "--steps", "12", "--device", "cpu"]
    words += settings("training.checkpoint_every=5", "model.dropout=0.1")
    assert nursery.run(*words, "--out", "whole", folder=tmp_path).code == 0
    killed = nursery.run(*words, "--out", "killed", folder=tmp_path, before=DIE)
    assert killed.code == -9, killed.said
    resumed = nursery.run("train", "--resume", "killed", folder=tmp_path)
    assert resumed.code == 0, resumed.said
    assert "going on after step 5 of 12" in resumed.said
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert files[0] == files[1]
