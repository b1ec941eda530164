"""The demo in short: the whole way, with too few steps to learn much."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from heedful.cli import commands
from heedful.cli.app import app


def test_the_demo_trains_tests_draws_and_says_what_to_type_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "demo"
    done = CliRunner().invoke(app, ["demo", "--out", str(out), "--steps", "6"])
    assert done.exit_code == 0, done.output
    assert "heedful train translate" in done.output
    assert (out / "model" / "card.md").is_file()
    pictures = sorted(out.glob("alignment-*.png"))
    assert len(pictures) == 4
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    again = CliRunner().invoke(app, ["demo", "--out", str(out), "--steps", "6"])
    assert again.exit_code != 0, "nothing is overwritten"
    assert commands.app is app
