"""Corrections are kept as pairs, and learned beside a sample of the text the model knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from heedful.studio.corrections import REPEATS, REPLAYED, add_correction, fine_tuning_arguments, read_corrections


def test_corrections_are_counted_and_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "corrections.tsv"
    assert add_correction(file, 'say "hi"', "sag\tes\nso") == 1
    assert add_correction(file, "two", "zwei") == 2
    assert read_corrections(file) == [('say "hi"', "sag es so"), ("two", "zwei")]


def test_known_text_is_replayed_beside_the_corrections(make_trained: Callable[..., Any], tmp_path: Path) -> None:
    trained = make_trained("laptop-translator")
    folder = tmp_path / "model"
    folder.mkdir()
    for side in ("en", "de"):
        (tmp_path / f"train.{side}").write_text("".join(f"{side} {number}\n" for number in range(REPLAYED * 3)))
    (folder / "recipe.toml").write_text(
        '[data]\ntrain = ["../train.en", "../train.de"]\nvalid = ["../train.en", "../train.de"]\n'
    )
    trained.folder = folder
    try:
        arguments = fine_tuning_arguments(trained, [("one", "eins")], tmp_path / "learn.tsv")
    finally:
        trained.folder = None
    rows = read_corrections(tmp_path / "learn.tsv")
    assert rows.count(("one", "eins")) == REPEATS
    assert len(rows) == REPLAYED + REPEATS
    assert rows[1][0].removeprefix("en ") == rows[1][1].removeprefix("de ")
    assert arguments.count("--valid") == 2
