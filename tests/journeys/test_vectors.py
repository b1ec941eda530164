"""Train word vectors and use them through the command line."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heedful
from heedful.loading import load_word_vectors

Command = Callable[..., Any]
CAPITALS = {"france": "paris", "italy": "rome", "japan": "tokyo", "spain": "madrid", "egypt": "cairo", "peru": "lima"}
SETTINGS = ["--set", "training.batch_tokens=512", "--set", "model.width=16", "--set", "training.subsample=0"]


def sentences() -> Iterator[str]:
    """Capitals and countries each have their own contexts, and each country its own words with both."""
    generator = np.random.default_rng(0)
    for _ in range(4000):
        country, capital = list(CAPITALS.items())[generator.integers(len(CAPITALS))]
        side = generator.integers(2)
        about = ("the streets and trains of", "the borders and laws of")[side]
        yield f"{about} {(capital, country)[side]} are {country}ish and {country}like, they say."


@pytest.fixture(scope="module")
def run(fork_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    (folder / "corpus.txt").write_text("\n".join(sentences()) + "\n")
    done = fork_server.run(
        "train", "embed", "corpus.txt", *SETTINGS, "--steps", "300", "--device", "cpu", folder=folder
    )
    assert done.code == 0, done.output
    return folder


def test_train_writes_recipe_card_and_vectors(run: Path) -> None:
    card = (run / "embed-1" / "card.md").read_text()
    assert "maps words to vectors" in card
    assert 'heedful.load("embed-1").embed("…")' in card
    assert 'task = "embed"' in (run / "embed-1" / "recipe.toml").read_text()
    events = [json.loads(line) for line in (run / "embed-1" / "metrics.jsonl").read_text().splitlines()]
    losses = [event["scores"]["valid_loss"] for event in events if event["kind"] == "evaluation"]
    assert losses[-1] < losses[0]


def test_text_without_spaces_between_words_gives_no_usable_vectors(fork_server: Any, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    words = ["ฉัน", "เขา", "กิน", "ข้าว", "น้ำ", "ตลาด", "บ้าน", "แมว", "หมา", "รัก"]
    lines = ["".join(generator.choice(words, 12)) for _ in range(300)]
    (tmp_path / "corpus.txt").write_text("\n".join([*lines[:20], *lines]) + "\n")
    done = fork_server.run("train", "embed", "corpus.txt", "--steps", "2", "--device", "cpu", folder=tmp_path)
    assert done.code == 0, done.output
    scores, verdict = (
        next(line for line in done.output.splitlines() if line.startswith(name)) for name in ("scores", "verdict")
    )
    assert "on the validation text" not in scores  # a number of words is not a score
    assert re.search("not usable: only [0-9]% of the words of the validation text are in the vocabulary", verdict)
    assert "put spaces between" in verdict


def test_similar_words_and_analogies(run: Path, heedful_command: Command) -> None:
    near = heedful_command("similar", "embed-1", "paris", "--json", cwd=run)
    result = json.loads(near.stdout)
    assert result["word"] == "paris"
    assert len(result["neighbors"]) == 10
    both = heedful_command("similar", "embed-1", "Paris", "rome", "--top", "2", cwd=run)
    assert [line.split("\t")[0] for line in both.stdout.splitlines()] == ["Paris", "Paris", "rome", "rome"]
    answer = heedful_command("analogy", "embed-1", "paris", "france", "italy", cwd=run)
    assert answer.stdout.split("\t")[0] == "rome", answer.stdout


def test_an_unknown_word_is_a_note_and_the_others_are_answered(run: Path, heedful_command: Command) -> None:
    done = heedful_command("similar", "embed-1", "paris", "Zzzyx", "--top", "2", cwd=run)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)
    assert done.stderr == "heedful: embed-1 does not know 'Zzzyx'; try another word\n"
    lines = heedful_command("similar", "embed-1", "Zzzyx", "paris", "--json", cwd=run).stdout.splitlines()
    unknown, known = map(json.loads, lines)
    assert (unknown["word"], unknown["neighbors"], len(unknown["warnings"])) == ("Zzzyx", [], 1)
    assert len(known["neighbors"]) == 10


def test_vectors_are_written_as_csv_or_tsv_by_the_name_of_the_file(run: Path, heedful_command: Command) -> None:
    words = ("embed", "embed-1", "paris", "rome")
    for name, separator in (("v.csv", ","), ("v.tsv", "\t"), ("v.txt", " ")):
        assert heedful_command(*words, "--output", name, cwd=run).returncode == 0
        rows = [line.split(separator) for line in (run / name).read_text().splitlines()]
        assert [len(row) for row in rows] == [heedful.load(run / "embed-1").model.config.width] * 2
        assert all(float(cell) < 100 for row in rows for cell in row)
    assert heedful_command("embed", "embed-1", "paris, rome", "--words", "--output", "w.csv", cwd=run).returncode == 0
    with (run / "w.csv").open(newline="") as file:
        assert [row[1] for row in csv.reader(file)] == ["paris,", "rome"]


def test_evaluate_scores_a_model_and_its_word2vec_export_alike(run: Path, heedful_command: Command) -> None:
    pairs = list(CAPITALS.items())
    questions = [(*pairs[i], *pairs[j]) for i in range(3) for j in range(3, 6)]
    (run / "capitals.txt").write_text(": capitals\n" + "".join(" ".join(words) + "\n" for words in questions))
    ours = heedful_command("evaluate", "embed-1", "capitals.txt", "--json", cwd=run)
    scores = json.loads(ours.stdout)
    assert scores["capitals_questions"] == 9
    assert scores["capitals_accuracy"] > 0.5
    assert heedful_command("export", "embed-1", "out", "--to", "word2vec", cwd=run).returncode == 0
    theirs = heedful_command("evaluate", "out/vectors.txt", "capitals.txt", "--json", cwd=run)
    assert json.loads(theirs.stdout) == scores
    shown = heedful_command("evaluate", "embed-1", "capitals.txt", cwd=run).stdout
    assert "capitals accuracy" in shown
    assert " of 9" in shown


def test_embed_writes_lines_json_or_an_array(run: Path, heedful_command: Command) -> None:
    texts = ["the streets of paris", "the streets of rome", "laws"]
    plain = heedful_command("embed", "embed-1", *texts, cwd=run)
    table = np.array([[float(value) for value in line.split()] for line in plain.stdout.splitlines()])
    expected = heedful.load(run / "embed-1").embed(texts)
    np.testing.assert_allclose(table, expected, rtol=1e-4, atol=1e-6)
    assert heedful_command("embed", "embed-1", *texts, "--output", "v.npy", cwd=run).returncode == 0
    np.testing.assert_allclose(np.load(run / "v.npy"), expected, rtol=1e-5, atol=1e-6)
    result = json.loads(heedful_command("embed", "embed-1", "zebra", "--json", cwd=run).stdout)
    assert (result["text"], len(result["vector"]), len(result["warnings"])) == ("zebra", 16, 1)
    alike = heedful_command("embed", "embed-1", "--compare", *texts, cwd=run).stdout.splitlines()
    assert float(alike[0].split()[0]) > float(alike[1].split()[0])


def test_map_draws_words(run: Path, heedful_command: Command) -> None:
    done = heedful_command("map", "embed-1", *CAPITALS, *CAPITALS.values(), "--output", "map.png", cwd=run)
    assert (done.returncode, done.stdout.strip()) == (0, "map.png")
    assert (run / "map.png").read_bytes().startswith(b"\x89PNG")


def test_map_draws_words_of_any_script_without_a_warning(heedful_command: Command, tmp_path: Path) -> None:
    words = {"猫": "0 1", "犬": "1 0", "แมว": "1 1", "$x$y$": "2 1"}
    lines = [f"{len(words)} 2", *(f"{word} {vector}" for word, vector in words.items())]
    (tmp_path / "vectors.txt").write_text("\n".join(lines) + "\n")
    done = heedful_command("map", "vectors.txt", *words, "--output", "map.svg", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "猫" in (tmp_path / "map.svg").read_text()


def test_a_resumed_run_gives_bitwise_the_same_model(fork_server: Any, run: Path, tmp_path: Path) -> None:
    shutil.copy(run / "corpus.txt", tmp_path / "corpus.txt")
    options = [*SETTINGS, "--set", "training.checkpoint_every=10", "--steps", "40", "--device", "cpu"]
    assert fork_server.run("train", "embed", "corpus.txt", *options, "--out", "whole", folder=tmp_path).code == 0
    kill = "import os, heedful.training.run as run; run.evaluate_and_report = lambda *_, **__: os.kill(os.getpid(), 9)"
    killed = fork_server.run("train", "embed", "corpus.txt", *options, "--out", "cut", folder=tmp_path, before=kill)
    assert killed.code == -9, killed.output
    shutil.rmtree(tmp_path / "cut" / "training" / "step-00000040")
    done = fork_server.run("train", "--resume", "cut", folder=tmp_path)
    assert done.code == 0, done.output
    assert "resuming after step 30 of 40" in done.output
    whole, cut = (tmp_path / name / "model.safetensors" for name in ("whole", "cut"))
    assert whole.read_bytes() == cut.read_bytes()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["similar", "embed-1", "pariss"], 2, "embed-1 does not know 'pariss'; did you mean 'paris'?"),
        (["analogy", "embed-1", "paris", "france", "qqqqq"], 2, "does not know 'qqqqq'; try another word"),
        (["similar", "corpus.txt", "paris"], 4, "neither a model folder nor a word2vec file"),
        (["similar", "gone", "paris"], 4, "gone is not a model folder: it does not exist"),
        (["translate", "embed-1", "paris"], 2, "embed-1 is an embedder, not a translator; use heedful embed"),
        (["evaluate", "embed-1", "corpus.txt"], 3, "neither"),
        (["map", "embed-1", "paris", "rome"], 2, "a map needs at least three words, got 2"),
        (["embed", "embed-1", "--compare", "the streets"], 2, "--compare takes at least two texts, got 1"),
        (["train", "embed", "tiny.txt", "--device", "cpu"], 3, "fewer than two different words"),
        (["train", "embed", "corpus.txt", "--model", "recurrent"], 2, "leave out --model recurrent"),
        (["train", "embed", "corpus.txt", "--set", "training.window=0"], 2, "window"),
        (["export", "embed-1", "hf", "--to", "huggingface"], 2, ""),
    ],
)
def test_a_usage_error_is_one_line(
    run: Path, heedful_command: Command, words: list[str], code: int, message: str
) -> None:
    (run / "tiny.txt").write_text("".join(f"word{number}\n" for number in range(99)))  # none of them twice
    done = heedful_command(*words, cwd=run)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("heedful: ")]
    assert len(lines) == 1, done.stderr
    assert message in lines[0]


def test_plan_prints_a_forecast_as_json(run: Path, heedful_command: Command) -> None:
    done = heedful_command("plan", "embed", "corpus.txt", *SETTINGS, "--device", "cpu", "--json", cwd=run)
    assert done.returncode == 0, done.stderr
    forecast = json.loads(done.stdout)
    assert {*forecast["parameters"]} == {"token vectors", "context vectors", "word-order vectors"}
    assert forecast["seconds_per_step"] > 0


def test_word_vectors_of_any_model_can_be_loaded(run: Path) -> None:
    assert "paris" in load_word_vectors(run / "embed-1")
