"""The `heedful census` command: table, files, means, pruning, interruption, and user errors."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.data.batching import evenly_spaced
from heedful.data.dates_corpus import dates_corpus
from heedful.evaluation.bleu_tokenizer import choose_bleu_tokenizer
from heedful.evaluation.text_metrics import sample_scores
from heedful.loading import wrap_model
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_kinds import TokenizerConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a translator, translate-1, and validation pairs, valid.tsv."""
    path = tmp_path_factory.mktemp("census")
    pairs = [(pair.source, pair.target) for pair in dates_corpus(train=1, valid=130, test=1).valid]
    (path / "valid.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in [("en", "iso"), *pairs]))
    texts = [text for pair in pairs for text in pair]
    tokenizer = Tokenizer.train(texts, TokenizerConfig(kind="characters", vocabulary=80))
    torch.manual_seed(2)
    model = heedful.build("laptop-translator", vocabulary=len(tokenizer), width=32, heads=4, layers=2).eval()
    wrap_model(model, (tokenizer,)).save(path / "translate-1")
    recurrent = heedful.build("recurrent-translator", vocabulary=len(tokenizer), width=32).eval()
    wrap_model(recurrent, (tokenizer,)).save(path / "recurrent-1")
    vectors = heedful.build("laptop-reader", vocabulary=len(tokenizer), width=32, heads=4, layers=2, tasks=[]).eval()
    wrap_model(vectors, (tokenizer,)).save(path / "encode-1")
    return path


def test_a_census_prints_a_ranked_table_and_writes_a_picture(
    heedful_command: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    done = heedful_command("census", "translate-1", "valid.tsv", "--limit", "20", "--out", tmp_path / "census.svg",
                           cwd=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "translate-1: 20 texts" in done.stdout
    assert "decoder.1.cross.head.3" in done.stdout
    assert "loss, mean" in done.stdout
    assert "<svg" in (tmp_path / "census.svg").read_text()
    again = heedful_command("census", "translate-1", "valid.tsv", "--limit", "20", "--to", "zero", "--json", cwd=folder)
    census = json.loads(again.stdout)
    assert (census["texts"], census["to"]) == (20, ["zero"])
    assert all(set(part["changes"]) == {"zero"} for part in census["parts"])


def test_translations_are_scored_without_each_part(heedful_command: Callable[..., Any], folder: Path) -> None:
    words = ("census", "translate-1", "valid.tsv", "--limit", "10", "--to", "zero", "--translations", "3")
    done = heedful_command(*words, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    census = json.loads(done.stdout)
    model = heedful.load(folder / "translate-1")
    part = next(part for part in census["parts"] if part["part"] == "decoder.0.cross")
    assert census["translations"]["texts"] == 3
    assert {"bleu", "chrf"} <= set(part["changes"]["zero"])
    pairs = [pair.split("\t") for pair in (folder / "valid.tsv").read_text().splitlines()[1:]]
    sample = [pairs[index] for index in evenly_spaced(len(pairs), 3)]
    scores = []
    for interventions in ([], [heedful.Ablate("decoder.0.cross")]):
        outputs = model.translate([source for source, _ in sample], beam=1, keep=False, interventions=interventions)
        targets = [target for _, target in sample]
        scores.append(sample_scores(outputs, targets, choose_bleu_tokenizer(targets)).chrf)
    assert part["changes"]["zero"]["chrf"] == pytest.approx(scores[1] - scores[0])
    assert "BLEU" in heedful_command(*words, cwd=folder).stdout


def test_means_are_saved_for_ablation_to_the_mean(
    heedful_command: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    heedful.load(folder / "translate-1").save(tmp_path / "model")
    heedful_command("census", "model", folder / "valid.tsv", "--limit", "10", "--save-means", cwd=tmp_path)
    model = heedful.load(tmp_path / "model")
    assert model.means is not None
    assert model.translate("3 May 2021", interventions=[heedful.Ablate("decoder.0.cross", to="mean")]) is not None


def test_pruning_writes_a_smaller_model_and_its_scores(
    heedful_command: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    done = heedful_command("census", "translate-1", "valid.tsv", "--limit", "60", "--prune", "5", "--out-model",
                           tmp_path / "small", cwd=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "5 of 24 heads pruned: " in done.stdout
    assert "that the census did not use" in done.stdout
    assert "texts/s" in done.stdout
    small, original = heedful.load(tmp_path / "small"), heedful.load(folder / "translate-1")
    sizes = [sum(weight.numel() for weight in loaded.model.parameters()) for loaded in (small, original)]
    assert f"{sizes[0]:,}" in done.stdout
    assert sizes[0] < sizes[1]
    assert isinstance(small.translate("3 May 2021"), str)
    again = heedful_command("census", "translate-1", "valid.tsv", "--prune", "5", "--out-model", tmp_path / "small",
                            cwd=folder)  # fmt: skip
    assert again.returncode == 2
    assert "exists and is not empty" in again.stderr


def test_an_interrupted_census_resumes(fork_server: Any, folder: Path, tmp_path: Path) -> None:
    cache = f"import os; os.environ['HEEDFUL_CACHE'] = {str(tmp_path / 'cache')!r}\n"
    stop = (
        "from heedful.inspection.census import census_measurement\n"
        "scored, calls = census_measurement.score_pass_states, []\n"
        "def interrupted(*arguments):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 30: raise KeyboardInterrupt\n"
        "    return scored(*arguments)\n"
        "census_measurement.score_pass_states = interrupted\n"
    )
    words = ("census", "translate-1", "valid.tsv", "--limit", "20", "--to", "zero", "--json")
    first = fork_server.run(*words, folder=folder, before=cache + stop)
    assert first.code == 128 + signal.SIGINT
    assert first.output.splitlines()[-1] == "heedful: interrupted; the same command goes on from here"
    assert len(list((tmp_path / "cache" / "census").iterdir())) == 1
    output = tmp_path / "out.json"
    second = fork_server.run(*words, folder=folder, before=cache, log=tmp_path / "log", output=output)
    assert second.code == 0, second.output
    assert json.loads(output.read_text())["texts"] == 20
    third = fork_server.run(*words, folder=folder, before=cache + stop, output=output)
    assert third.code == 0, "a complete census is not measured again"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["translate-1", "missing.tsv"], "missing.tsv: no such file"),
        (["translate-1", "valid.tsv", "--columns", "en,de"], "de"),
        (["encode-1", "valid.tsv"], "makes vectors and predicts nothing"),
        (["translate-1", "valid.tsv", "--out", "census.gif"], "unknown kind of file '.gif'"),
        (
            ["translate-1", "valid.tsv", "--out", "no/census.png"],
            "no/census.png cannot be written: there is no folder no",
        ),
        (["translate-1", "valid.tsv", "--prune", "4"], "--out-model FOLDER"),
        (["translate-1", "valid.tsv", "--out-model", "x"], "add one of them"),
        (["translate-1", "valid.tsv", "--prune-until", "a bit", "--out-model", "x"], "a percentage of the loss"),
        (["translate-1", "valid.tsv", "--prune", "40", "--out-model", "x", "--limit", "5"], "prune at most 18"),
        (["recurrent-1", "valid.tsv", "--prune", "1", "--out-model", "x"], "has no attention heads to prune"),
        (["translate-1", "valid.tsv", "--prune-part", "encoder.positions", "--out-model", "x"], "cannot be pruned"),
    ],
)
def test_a_user_error_is_one_line(
    heedful_command: Callable[..., Any], folder: Path, words: list[str], message: str
) -> None:
    done = heedful_command("census", *words, cwd=folder)
    assert done.returncode in (2, 3)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("heedful: ")]
    assert message in line
    assert "Traceback" not in done.stderr
    assert not (folder / "x").exists()
