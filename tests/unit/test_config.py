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
        ("{" + "x" * 9000, "is not valid JSON: "),
        ('{"head": 1, "head": 2}', "is not valid JSON: the key 'head' appears twice"),
    ],
)
def test_an_unreadable_configuration_file_is_one_short_line(content: str, message: str) -> None:
    file = Path("run/alignment.json")
    with pytest.raises(CheckpointError) as refusal:
        Alignment.from_json(content.encode(), file)
    line = str(refusal.value)
    assert line.startswith(f"{file} ")
    assert message in line
    assert "\n" not in line
    assert len(line) < 500
