"""Generated files of every kind: each is read correctly or refused in one line, by the doctor, plan and train alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful.data.corpus_doctor import examine
from heedful.data.corpus_readers import read_pairs
from heedful.errors import HeedfulError

from .corpus_files import CorpusFile, corpus_file

TINY = ("tokenizer.vocabulary=300", "model.width=16", "model.heads=2", "model.layers=1", "data.held_out=0.2")


def outcome(call: Callable[[], Any]) -> Any:
    """The result of a call, or its error line."""
    try:
        return call()
    except HeedfulError as error:
        return str(error)


def read(file: CorpusFile) -> list[tuple[str, str]] | None:
    """The pairs of a file, the same by every reader and never from a wrong column; None if it is refused."""
    pairs = outcome(lambda: [(pair.source, pair.target) for pair in read_pairs([file.path])])
    report = outcome(lambda: examine([file.path], kind="pairs", on_bad_line="fail"))
    assert isinstance(pairs, str) == isinstance(report, str), f"{file.description}: {pairs} {report}"
    if isinstance(pairs, str):
        assert not file.is_intact, f"{file.description}: {pairs}"
        assert "\n" not in pairs
        return None
    cells = {tuple(cell.removeprefix('"') for cell in pair) for pair in pairs}
    assert cells <= set(file.pairs), file.description
    assert pairs == file.pairs or not file.is_intact, file.description
    assert (examine([file.path]).kind, report.usable) == ("pairs", len(pairs)), file.description
    return pairs


def test_generated_files_are_read_correctly_or_refused_in_one_line(tmp_path: Path) -> None:
    pairs = [read(corpus_file(tmp_path, number)) for number in range(60)]
    assert 15 <= sum(rows is None for rows in pairs) <= 45


@pytest.mark.slow
def test_generated_files_go_through_doctor_plan_and_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    for number in range(300):
        file = corpus_file(tmp_path, number)
        pairs = read(file)
        options: dict[str, Any] = {"steps": 5, "settings": TINY, "device": "cpu"}
        forecast = outcome(lambda file=file, options=options: heedful.plan("translate", file.path, **options))
        options["out"] = tmp_path / f"run{number}"
        model = outcome(lambda file=file, options=options: heedful.train("translate", file.path, **options))
        for result in (forecast, model):
            assert isinstance(result, str) == (pairs is None), f"{file.description}: {result}"
            assert not isinstance(result, str) or "\n" not in result
