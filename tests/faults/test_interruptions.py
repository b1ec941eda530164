"""Interruption changes nothing: killed at any moment and resumed, a run ends with the same bits."""

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
CLOCK = {"seconds", "tokens_per_second", "seconds_per_step", "memory_gib", "folder", "card", "compared"}
TAKEN = re.compile(r"^## Forecast and measurement$.*?(?=^## )", re.MULTILINE | re.DOTALL)


def command(dates: Path, family: str, **changes: Any) -> list[str | Path]:
    settings = {**SMALL, **FAMILIES[family], "training.steps": STEPS, **changes}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    pair = [dates / "train.source", dates / "train.target"]
    valid = ["--valid", dates / "valid.source", dates / "valid.target"]
    return ["train", "translate", *pair, *valid, "--model", family, "--device", "cpu", *words]


def result(run: Path) -> dict[str, Any]:
    """All that a run leaves behind, but for what a clock measured."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    told = [event for event in events if event["kind"] in ("step", "evaluation", "done")]
    end = list_checkpoints(run / "training")[0]
    return {
        "model": digest(run / "model.safetensors"),
        "state": digest(end / "state.safetensors"),
        "progress": json.loads((end / "metadata.json").read_text())["progress"],
        "metrics": [{key: value for key, value in event.items() if key not in CLOCK} for event in told],
        "card": TAKEN.sub("", (run / "card.md").read_text()),
        "names": sorted(str(path.relative_to(run)) for path in run.rglob("*")),
    }


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def straight(fork_server: Any, dates: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each family comes to when nothing happens."""
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
    """Kill all along the way, from the layout of the folder to the report, each time at a random moment."""
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
    """Until it has told of this step, or goes on from a later one."""
    end = time.monotonic() + 60
    while step and max(map(int, re.findall(r"step +(\d+)", process.output())), default=0) < step:
        assert time.monotonic() < end, process.output()
        time.sleep(0.005)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_and_resumed_is_as_if_never_killed(
    fork_server: Any, dates: Path, straight: Any, family: str, kills: int, tmp_path: Path
) -> None:
    expected = straight(family)
    hits = list(killed_often(fork_server, dates, family, tmp_path, kills))
    print("", *hits, sep="\n")
    done = fork_server.run(*command(dates, family), "--resume", "run", folder=tmp_path)
    assert done.code == 0, done.output
    assert result(tmp_path / "run") == expected


@pytest.mark.parametrize("spacing", [14, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_call_that_changes_files_is_as_if_never_killed(
    fork_server: Any, dates: Path, straight: Any, spacing: int, tmp_path: Path
) -> None:
    """Each process gets a little further: through the folder's layout, checkpoints and saves of the best model."""
    kills, last = 0, -signal.SIGKILL
    while last == -signal.SIGKILL:
        number = 4 + spacing * kills
        done = fork_server.run(*command(dates, "recurrent"), "--resume", "run", folder=tmp_path, kill_at=number)
        kills, last = kills + 1, done.code
    assert last == 0, done.output
    assert kills > 3
    assert result(tmp_path / "run") == straight("recurrent")


def test_asked_to_stop_it_saves_says_how_to_go_on_and_twice_stops_at_once(
    fork_server: Any, dates: Path, straight: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for number, step, code in ((signal.SIGINT, 2, 130), (signal.SIGTERM, 12, 143)):
        process = fork_server.start(*command(dates, "transformer"), "--resume", "run", folder=tmp_path)
        wait_for_step(process, step)
        process.send_to_group(number)  # loaders get it, too: by a terminal, by systemd, by SLURM
        done = process.wait()
        assert done.code == code, done.output
        last = done.output.strip().splitlines()[-1]
        assert "go on with: heedful train --resume run" in last
        assert f"after step {int(list_checkpoints(run / 'training')[0].name[5:])} " in last, "it stopped where it was"
    process = fork_server.start("train", "--resume", "run", folder=tmp_path)
    wait_for_step(process, 24)
    process.send(signal.SIGINT)
    process.send(signal.SIGTERM)
    assert process.wait().code in (130, 143)
    done = fork_server.run("train", "--resume", "run", folder=tmp_path)
    assert done.code == 0, done.output
    assert result(run) == straight("transformer")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_proof_kills_and_resumes_and_the_card_tells(fork_server: Any, dates: Path, family: str, tmp_path: Path) -> None:
    done = fork_server.run(*command(dates, family), "--out", "run", "--prove-resume", folder=tmp_path)
    assert done.code == 0, done.output
    assert "the same, bit for bit" in done.output
    card = (tmp_path / "run" / "card.md").read_text()
    assert card.count("## Resuming, proved") == 1
    straight, resumed = re.findall(r"SHA-256 (\w{64})", card)
    assert straight == resumed
    again = fork_server.run("train", "--resume", "run", "--prove-resume", folder=tmp_path)
    assert again.code == 0, again.output
    assert (tmp_path / "run" / "card.md").read_text() == card
    assert not list((tmp_path / "run").glob("proof-*"))
