"""Training on a gigabyte of text needs bounded memory."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

GIGABYTE, LINES = 10**9, 16_000_000
MEMORY_LIMIT = 1.5 * 2**30
"""Bytes that the command and its children may use at a time; torch alone uses a fifth of it."""

SMALL = ("model.width=32", "model.heads=2", "model.layers=1", "training.batch_tokens=1024", "training.workers=1")


def write_lines(file: Path, lines: int, seed: int) -> None:
    """Mostly unique lines of about 64 characters, with word frequencies as skewed as those of a language."""
    random = Random(seed)
    letters = "aeiounrstlmdkgbp"
    words = ["".join(random.choices(letters, k=2 + number.bit_length() // 3)) for number in range(40_000)]
    halves = [" ".join(words[int(40_000 ** random.random()) - 1] for _ in range(6)) for _ in range(20_000)]
    with file.open("w") as out:
        for _ in range(0, lines, 100_000):
            pairs = zip(random.choices(halves, k=100_000), random.choices(halves, k=100_000), strict=True)
            out.write("".join(f"{first} {second}\n" for first, second in pairs))


def run_and_measure(command: list[str], cwd: Path) -> tuple[int, str, int]:
    """Run a command: its exit code, its output, and the peak memory of it and its children."""
    with (cwd / "output.txt").open("w") as output:
        process = subprocess.Popen(command, cwd=cwd, stderr=output, stdout=output)
        peak = 0
        while process.poll() is None:
            peak = max(peak, sum(map(_memory, _process_tree(process.pid))))
            time.sleep(0.25)
    return process.returncode, (cwd / "output.txt").read_text(), peak


def _process_tree(process: int) -> list[int]:
    children = Path(f"/proc/{process}/task/{process}/children")
    try:
        return [
            process,
            *(descendant for child in children.read_text().split() for descendant in _process_tree(int(child))),
        ]
    except OSError:  # the process has just ended
        return []


def _memory(process: int) -> int:
    """Proportional set size: memory shared between processes is divided among them, so that a sum counts it once."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # the process has just ended
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("task", ["generate", "translate"])
def test_training_on_a_gigabyte_of_text_needs_bounded_memory(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    names = ["book.txt"] if task == "generate" else ["a.source", "a.target"]
    for seed, name in enumerate(names):
        write_lines(tmp_path / name, LINES // len(names), seed)
    assert sum((tmp_path / name).stat().st_size for name in names) > GIGABYTE
    settings = [word for setting in SMALL for word in ("--set", setting)]
    command = [sys.executable, "-c", "from heedful.cli.app import main; main()", "train", task, *names]
    code, output, peak = run_and_measure(
        [*command, "--steps", "3", "--out", "run", "--device", "cpu", *settings], tmp_path
    )
    assert code == 0, output
    assert (tmp_path / "run" / "card.md").is_file()
    assert "rows beyond the first 5,0" in output, "statistics are limited to the first rows, and a note says so"
    assert peak < MEMORY_LIMIT, f"{peak / 2**20:.0f} MiB"
