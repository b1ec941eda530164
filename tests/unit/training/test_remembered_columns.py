"""The columns a model was trained on are those it is evaluated on, where a file has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.data.corpus_readers import has_columns
from heedful.training.recipe import recipe_columns


@pytest.mark.parametrize(("written", "columns"), [('["review", "stars"]', ("review", "stars")), ("[2, 1]", ("2", "1"))])
def test_columns_come_from_the_recipe_beside_the_model(written: str, columns: tuple[str, ...], tmp_path: Path) -> None:
    assert recipe_columns(tmp_path) == recipe_columns(None) == ()
    (tmp_path / "recipe.toml").write_text(f'task = "classify"\n[data]\ncolumns = {written}\n')
    assert recipe_columns(tmp_path) == columns


def test_remembered_columns_apply_to_files_that_have_them(tmp_path: Path) -> None:
    same, usual, lines = (tmp_path / name for name in ("a.csv", "b.csv", "c.txt"))
    same.write_text("when,review,stars\n2020,good,1\n2021,bad,0\n")
    usual.write_text("label,text\n1,good\n0,bad\n")
    lines.write_text("only text\n")
    assert has_columns([same], ("review", "stars"))
    assert not has_columns([usual], ("review", "stars"))
    assert has_columns([same], ("2", "3"))
    assert not has_columns([usual], ("2", "1"))  # its header says what they are
    assert not has_columns([lines], ())
