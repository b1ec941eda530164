"""A look as a page and as pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heedful import UsageError

Build = Callable[..., Any]
TASKS = ("translate", "translate recurrent", "generate", "generate recurrent", "classify", "fill", "answer", "encode")
STRANGE = 'a </script><script>alert(1)</script> {{data}} <b>dog</b> & "park" $x$'


def page_data(page: str) -> Any:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


@pytest.mark.parametrize("task", TASKS)
def test_the_page_is_self_contained_with_all_values(
    small_model: Build, texts_of: Callable[[str], list[str]], task: str, tmp_path: Path
) -> None:
    look = small_model(task).look(texts_of(task)[0], lens=task != "encode")
    page = look.save(tmp_path / "look.html").read_text(encoding="utf-8")
    assert page_data(page) == json.loads(json.dumps(look.to_json()))
    assert not re.search(r"""(?:src|href)=|https?://(?!www\.w3\.org/2000/svg)|@import|url\(""", page)
    assert "default-src 'none'" in page


def test_text_never_becomes_markup(small_model: Build) -> None:
    look = small_model("translate").look(STRANGE, STRANGE)
    page = look.to_html()
    assert page.count("</script>") == 2
    assert page_data(page)["inputs"]["text"] == STRANGE
    assert "<b>" not in page
    assert 'sandbox="allow-scripts"' in look._repr_html_()
    assert "<b>" not in look._repr_html_()


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_pictures(
    small_model: Build, texts_of: Callable[[str], list[str]], task: str, tmp_path: Path
) -> None:
    look = small_model(task).look(texts_of(task)[0])
    assert look.save(tmp_path / "look.svg").stat().st_size > 2000
    if look.attention:
        name = list(look.attention)[-1]
        assert look.save(tmp_path / "head.svg", part=name, head=0).stat().st_size > 2000
        assert look.save(tmp_path / "part.svg", part=name).stat().st_size > 2000


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_a_picture_has_the_format_of_its_suffix(small_model: Build, tmp_path: Path, kind: str, start: bytes) -> None:
    look = small_model("translate").look(f"{STRANGE} 漢字 👩‍🚀 שלום \x1b[31m \u202e", "the $ park")
    file = look.save(tmp_path / f"look.{kind}")
    assert file.read_bytes().startswith(start)


def test_a_file_that_cannot_be_written_and_a_part_that_is_not_there_are_errors(
    small_model: Build, tmp_path: Path
) -> None:
    look = small_model("translate").look("a dog")
    with pytest.raises(UsageError, match=r"unknown kind of file '\.gif'; use one of \.html, \.png"):
        look.save(tmp_path / "look.gif")
    with pytest.raises(UsageError, match="did you mean"):
        look.save(tmp_path / "look.png", part="decoder.7.cross")
    assert not list(tmp_path.iterdir())
