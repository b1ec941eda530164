"""`heedful demo`: a shortened run, and the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SHORTER = """
from functools import partial
import heedful.training.dates_demo as demo
few = {"train": 600, "valid": 60, "test": 60}
demo.dates_corpus, demo.write_dates = partial(demo.dates_corpus, **few), partial(demo.write_dates, **few)
"""


def test_the_demo_trains_plots_and_shows_the_next_command(fork_server: Any, tmp_path: Path) -> None:
    done = fork_server.run("demo", "--out", "demo", "--steps", "10", folder=tmp_path, before=SHORTER)
    assert done.code == 0, done.output
    assert "heedful train translate" in done.output
    assert (tmp_path / "demo" / "model" / "card.md").is_file()
    pictures = sorted((tmp_path / "demo").glob("alignment-*.png"))
    assert len(pictures) == 4
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    again = fork_server.run("demo", "--out", "demo", "--steps", "10", folder=tmp_path)
    assert again.code == 2, "an existing folder is not overwritten"


@pytest.mark.slow
def test_the_demo_translates_unseen_days(heedful_command: Any, tmp_path: Path) -> None:
    done = heedful_command("demo", "--out", "demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    events = (tmp_path / "demo" / "model" / "metrics.jsonl").read_text().splitlines()
    (scores,) = (event["scores"] for event in map(json.loads, events) if event["kind"] == "done")
    assert scores["exact_match"] >= 0.99
