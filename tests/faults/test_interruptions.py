"""A run that is killed at any moment and resumed ends with the same bits."""

from __future__ import annotations

import hashlib
import json
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heedful.training.checkpoint.format import list_checkpoints

STEPS = 40
SMALL = {
    "tokenizer.kind": "characters",
    "model.width": 16,
    "model.dropout": 0.2,
    "training.batch_tokens": 400,
    "training.accumulate": 2,
    "training.evaluate_every": 10,
    "training.checkpoint_every": 4,
    "training.warmup": 5,
    "training.learning_rate": 0.01,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "transformer": {"model.heads": 2, "model.layers": 1, "training.optimizer": "muon", "training.workers": 1},
    "recurrent": {"training.average": "last", "training.average_last": 3, "tokenizer.subword_dropout": 0.0},
}
CLOCK = {
    "seconds", "tokens_per_second", "seconds_per_step", "seconds_left", "memory_gib", "folder", "card", "compared",
    "date", "verdict",
}  # fmt: skip
TAKEN = re.compile(r"^## (Forecast and measurement|Explanations)$.*?(?=^## )|\(about [^)]*\)", re.MULTILINE | re.DOTALL)
TIMED_FILE = "faithfulness.json"
"""Measured where there is time for it."""


def command(dates: Path, family: str, **changes: Any) -> list[str | Path]:
    settings = {**SMALL, **FAMILIES[family], "training.steps": STEPS, **changes}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    pair = [dates / "train.source", dates / "train.target"]
    valid = ["--valid", dates / "valid.source", "--valid", dates / "valid.target"]
    return ["train", "translate", *pair, *valid, "--model", family, "--device", "cpu", *words]


def result(run: Path) -> dict[str, Any]:
    """Everything a run writes, except measured times."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    logged = [event for event in events if event["kind"] in ("step", "evaluation", "done")]
    end = list_checkpoints(run / "training")[0]
    return {
        "model": digest(run / "model.safetensors"),
        "state": digest(end / "state.safetensors"),
        "progress": json.loads((end / "metadata.json").read_text())["progress"],
        "metrics": [{key: value for key, value in event.items() if key not in CLOCK} for event in logged],
        "card": TAKEN.sub("", (run / "card.md").read_text()),
        "names": sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.name != TIMED_FILE),
    }


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def uninterrupted(fork_server: Any, dates: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The result of an uninterrupted run of each family."""
    known: dict[str, dict[str, Any]] = {}

    def of(family: str) -> dict[str, Any]:
        if family not in known:
            folder = tmp_path_factory.mktemp(family)
            done = fork_server.run(*command(dates, family), "--out", "run", folder=folder)
            assert done.code == 0, done.output
            known[family] = result(folder / "run")
        return known[family]

    return of


def killed_often(fork_server: Any, dates: Path, family: str, folder: Path, kills: int) -> Iterator[str]:
    """Kill the run repeatedly, from the creation of its folder to the report, at random moments."""
    draw = random.Random(family)
    for kill in range(kills):
        process = fork_server.start(*command(dates, family), "--resume", "run", folder=folder)
        target = STEPS * kill // (kills - 1)
        wait_for_step(process, target)
        time.sleep(draw.uniform(0, 0.3))
        process.send(signal.SIGKILL)
        done = process.wait()
        assert done.code in (-signal.SIGKILL, 0), done.output
        inside = [path.name for path in folder.glob("run/**/*.tmp")]
        yield f"{target}: {done.code} {(done.output.strip().splitlines() or [''])[-1][:40]} {inside or ''}"


def wait_for_step(process: Any, step: int) -> None:
    """Wait until the log shows this step or a later one."""
    end = time.monotonic() + 60
    while step and max(map(int, re.findall(r"step +(\d+)", process.output())), default=0) < step:
        assert time.monotonic() < end, process.output()
        time.sleep(0.005)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_ends_with_the_same_bits(
    fork_server: Any, dates: Path, uninterrupted: Any, family: str, kills: int, tmp_path: Path
) -> None:
    expected = uninterrupted(family)
    hits = list(killed_often(fork_server, dates, family, tmp_path, kills))
    print("", *hits, sep="\n")
    done = fork_server.run(*command(dates, family), "--resume", "run", folder=tmp_path)
    assert done.code == 0, done.output
    assert result(tmp_path / "run") == expected


@pytest.mark.parametrize("spacing", [14, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_killed_at_any_file_operation_ends_with_the_same_bits(
    fork_server: Any, dates: Path, uninterrupted: Any, spacing: int, tmp_path: Path
) -> None:
    """Each process gets a little further: creating the folder, saving checkpoints and the best model."""
    kills, last = 0, -signal.SIGKILL
    while last == -signal.SIGKILL:
        number = 4 + spacing * kills
        done = fork_server.run(*command(dates, "recurrent"), "--resume", "run", folder=tmp_path, kill_at=number)
        kills, last = kills + 1, done.code
    assert last == 0, done.output
    assert kills > 3
    assert result(tmp_path / "run") == uninterrupted("recurrent")


def test_a_stop_signal_saves_a_checkpoint_and_a_second_one_exits_at_once(
    fork_server: Any, dates: Path, uninterrupted: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for number, step, code in ((signal.SIGINT, 2, 130), (signal.SIGTERM, 12, 143)):
        process = fork_server.start(*command(dates, "transformer"), "--resume", "run", folder=tmp_path)
        wait_for_step(process, step)
        process.send_to_group(number)  # to DataLoader workers, too, as terminals, systemd and SLURM do
        done = process.wait()
        assert done.code == code, done.output
        last = done.output.strip().splitlines()[-1]
        assert "resume with: heedful train --resume run" in last
        assert f"after step {int(list_checkpoints(run / 'training')[0].name[5:])} " in last, (
            "it stopped after the current step"
        )
    process = fork_server.start("train", "--resume", "run", folder=tmp_path)
    wait_for_step(process, 24)
    process.send(signal.SIGINT)
    process.send(signal.SIGTERM)
    assert process.wait().code in (130, 143)
    done = fork_server.run("train", "--resume", "run", folder=tmp_path)
    assert done.code == 0, done.output
    assert result(run) == uninterrupted("transformer")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_resume_check_is_reported_in_the_card(fork_server: Any, dates: Path, family: str, tmp_path: Path) -> None:
    done = fork_server.run(*command(dates, family), "--out", "run", "--check-resume", folder=tmp_path)
    assert done.code == 0, done.output
    assert "identical, bit for bit" in done.output
    card = (tmp_path / "run" / "card.md").read_text()
    assert card.count("## Resume check") == 1
    first, resumed = re.findall(r"SHA-256 (\w{64})", card)
    assert first == resumed
    again = fork_server.run("train", "--resume", "run", "--check-resume", folder=tmp_path)
    assert again.code == 0, again.output
    assert (tmp_path / "run" / "card.md").read_text() == card
    assert not list((tmp_path / "run").glob("resume-check-*"))
