"""A gigabyte of text is trained on in bounded memory."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

GIGABYTE, LINES = 10**9, 16_000_000
MOST = 1.5 * 2**30
"""Bytes that the command and its children may hold at once; torch alone takes a fifth of it."""

SMALL = ("model.width=32", "model.heads=2", "model.layers=1", "training.batch_tokens=1024", "training.workers=1")


def write_lines(file: Path, lines: int, seed: int) -> None:
    """Lines of some 64 characters, hardly one like another, with word counts as uneven as a language's."""
    random = Random(seed)
    letters = "aeiounrstlmdkgbp"
    words = ["".join(random.choices(letters, k=2 + number.bit_length() // 3)) for number in range(40_000)]
    halves = [" ".join(words[int(40_000 ** random.random()) - 1] for _ in range(6)) for _ in range(20_000)]
    with file.open("w") as out:
        for _ in range(0, lines, 100_000):
            pairs = zip(random.choices(halves, k=100_000), random.choices(halves, k=100_000), strict=True)
            out.write("".join(f"{first} {second}\n" for first, second in pairs))


def peak_of(command: list[str], cwd: Path) -> tuple[int, str, int]:
    """Runs a command: its exit code, what it said, and the most bytes that it and its children held at once."""
    with (cwd / "said.txt").open("w") as said:
        process = subprocess.Popen(command, cwd=cwd, stderr=said, stdout=said)
        most = 0
        while process.poll() is None:
            most = max(most, sum(map(_resident, _family(process.pid))))
            time.sleep(0.25)
    return process.returncode, (cwd / "said.txt").read_text(), most


def _family(process: int) -> list[int]:
    children = Path(f"/proc/{process}/task/{process}/children")
    try:
        return [process, *(each for child in children.read_text().split() for each in _family(int(child)))]
    except OSError:  # it ended just now
        return []


def _resident(process: int) -> int:
    """Bytes in memory, mapped files too; what it shares with others counts in part, so that a family adds up."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it ended just now
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("task", ["generate", "translate"])
def test_a_gigabyte_is_trained_on_in_bounded_memory(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    names = ["book.txt"] if task == "generate" else ["a.source", "a.target"]
    for seed, name in enumerate(names):
        write_lines(tmp_path / name, LINES // len(names), seed)
    assert sum((tmp_path / name).stat().st_size for name in names) > GIGABYTE
    settings = [word for setting in SMALL for word in ("--set", setting)]
    command = [sys.executable, "-c", "from heedful.cli.app import main; main()", "train", task, *names]
    code, said, most = peak_of([*command, "--steps", "3", "--out", "run", "--device", "cpu", *settings], tmp_path)
    assert code == 0, said
    assert (tmp_path / "run" / "card.md").is_file()
    assert "rows beyond the first 5,0" in said, "only so many rows are measured, and it says so"
    assert most < MOST, f"{most / 2**20:.0f} MiB at once"
