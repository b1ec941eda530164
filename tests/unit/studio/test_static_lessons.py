"""Every concept of the notes has a lesson that opens a view of the studio, and every study that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import heedful.studio
from heedful.lab import all_studies

STATIC = Path(heedful.studio.__file__).parent / "static"
CONCEPTS = Path(__file__).parents[3] / "docs/concepts.md"
VIEWS = {"use", "look", "switch", "steps", "train", "compare", "vectors", "lab"}


def lessons() -> dict[str, tuple[str, str]]:
    """View and remaining arguments of every lesson by its key."""
    text = (STATIC / "core/lessons.js").read_text(encoding="utf-8")
    matches = re.findall(r'^    ([A-Z]\d+): LESSON\("[^"]+", "[^"]*", "(\w+)", (.*)\),$', text, re.MULTILINE)
    return {key: (view, rest) for key, view, rest in matches}


def test_every_concept_has_a_lesson_and_every_lesson_a_concept() -> None:
    keys = set(re.findall(r"^### ([A-Z]\d+) · ", CONCEPTS.read_text(encoding="utf-8"), re.MULTILINE))
    numbers = {f"N{number}" for number in (1, 2, 3)}
    assert set(lessons()) == keys | numbers


def test_lessons_open_views_and_studies_that_exist() -> None:
    assert {view for view, _ in lessons().values()} <= VIEWS
    named = {name for _, rest in lessons().values() for name in re.findall(r'study\("(\w+)"\)', rest)}
    assert named == set(all_studies()) - {"approximation", "teaching", "heads"}
    sections = (STATIC / "parts/worked_examples.js").read_text(encoding="utf-8")
    for _, rest in lessons().values():
        for example in re.findall(r'example: "(\w+)"', rest):
            assert f'id="{example}"' in sections
