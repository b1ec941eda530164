"""The record of a model's training text: columns are reused, and its own files are recognized."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.data.corpus_readers import has_columns
from heedful.data.training_text import TrainingText, file_digests
from heedful.errors import DataError


def test_recorded_columns_apply_to_files_that_have_them(tmp_path: Path) -> None:
    same, usual, lines = (tmp_path / name for name in ("a.csv", "b.csv", "c.txt"))
    same.write_text("when,review,stars\n2020,good,1\n2021,bad,0\n")
    usual.write_text("label,text\n1,good\n0,bad\n")
    lines.write_text("only text\n")
    assert has_columns([same], ("review", "stars"))
    assert not has_columns([usual], ("review", "stars"))
    assert has_columns([same], ("2", "3"))
    assert not has_columns([usual], ("2", "1"))  # its header says what they are
    assert not has_columns([lines], ())


def test_training_files_are_recognized_under_other_names(tmp_path: Path) -> None:
    for name, content in {"train.txt": "one\n", "valid.txt": "two\n", "test.txt": "three\n"}.items():
        (tmp_path / name).write_text(content)
    copy = tmp_path / "copy.txt"
    copy.write_bytes((tmp_path / "train.txt").read_bytes())
    text = TrainingText(train=file_digests([tmp_path / "train.txt"]), valid=file_digests([tmp_path / "valid.txt"]))
    seen, selected = text.warnings([copy, tmp_path / "test.txt", tmp_path / "valid.txt"])
    assert f"{copy} is text this model was trained on" in seen
    assert "selected by" in selected


def test_swapped_scripts_are_refused() -> None:
    text = TrainingText(scripts=("Latin", "Han or kana"))
    text.refuse_swapped([Path("a")], ("Latin", "Han or kana"))
    text.refuse_swapped([Path("a")], ("Latin", "Latin"))
    TrainingText(scripts=("Latin", "Latin")).refuse_swapped([Path("a")], ("Latin", "Latin"))
    with pytest.raises(DataError, match=r"ja.txt is Han or kana, but this model reads Latin: are the files"):
        text.refuse_swapped([Path("ja.txt")], ("Han or kana", "Latin"))


def test_a_target_in_another_script_is_a_warning() -> None:
    trained = TrainingText(scripts=("Latin", "Han or kana"))
    (warning,) = trained.target_warnings([Path("a.tsv")], ("Latin", "Latin"))
    assert warning == "a.tsv: the target is Latin, but this model writes Han or kana: another language?"
    assert not [*trained.target_warnings([Path("a.tsv")], ("Cyrillic", "Han or kana"))], (
        "sources may be in many languages"
    )
    assert not [*TrainingText().target_warnings([Path("a.tsv")], ("Latin", "Latin"))]
