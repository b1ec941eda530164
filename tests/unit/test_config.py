"""A stored configuration that cannot be read is one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.errors import CheckpointError
from heedful.inspection.attention_alignment import Alignment


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"tap": 1}', "tap: input should be a valid string, got 1; setting 'head' is missing"),
        ("{" + "x" * 9000, "invalid json: "),
    ],
)
def test_an_unreadable_configuration_file_is_one_short_line(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "alignment.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError) as refusal:
        Alignment.read_json(file)
    line = str(refusal.value)
    assert line.startswith(f"{file} is damaged or from another version: {message}")
    assert "\n" not in line
    assert len(line) < 500


def test_a_configuration_file_that_does_not_exist_is_none(tmp_path: Path) -> None:
    assert Alignment.read_json(tmp_path / "alignment.json") is None
