"""A look as text for a terminal, also with unusual characters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import heedful
from heedful.inspection.attention_table import attention_table
from heedful.inspection.look_text import cut, display_width, look_lines, percent, shade
from heedful.inspection.visible_text import visible

Build = Callable[..., Any]
TASKS = ("translate", "translate recurrent", "generate", "generate recurrent", "classify", "fill", "answer", "encode")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("width", [60, 120])
def test_every_task_is_shown_in_lines_that_fit(
    small_model: Build, texts_of: Callable[[str], list[str]], task: str, width: int
) -> None:
    look = small_model(task).look(texts_of(task)[0], lens=task != "encode")
    first, *lines = list(look_lines(look, attention_table(look), width))
    assert first == f"{look.model} · {look.task}"
    assert all(display_width(line) <= width for line in lines if not line.startswith(("in ", "out ")))
    for output in look.outputs:
        assert any(visible(output.text)[:17] in line and percent(output.probability) in line for line in lines)
    assert any(line.startswith("attention of") for line in lines) == (task != "generate recurrent")
    assert any(line.startswith("what each layer") for line in lines) == (task != "encode")


def test_the_darkest_column_of_a_row_is_the_word_it_attends_to(small_model: Build) -> None:
    look = small_model("translate").look("a small dog runs", "the green park")
    table = attention_table(look)
    lines = list(look_lines(look, table))
    start = next(i for i, line in enumerate(lines) if line.startswith("attention of")) + 2
    for line, weights in zip(lines[start:], table.weights.tolist(), strict=False):
        best = weights.index(max(weights))
        assert f"{best} {table.columns[best]} {percent(weights[best])}" in line
        assert line[5 + 1 + 2 * best] == shade(weights[best])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" dog", "dog"), (" ", "␣"), ("", "∅"), ("\n", "⏎"), ("a\tb", "a⇥b"), ("\x1b[1m", r"\x1b[1m"),
        ("\x07", "\\x07"),
        ("\u202e", r"\u202e"), ("\u200b", r"\u200b"), ("👩\u200d🚀", "👩\u200d🚀"), ("\u200d", r"\u200d"),
        ("שלום", "שלום"), ("漢字", "漢字"), ("<b>", "<b>"), ("\udcff", r"\udcff"), ("\x7f", r"\x7f"),
    ],
)  # fmt: skip
def test_invisible_and_control_characters_are_shown_as_signs(text: str, expected: str) -> None:
    assert visible(text) == expected


def test_widths_are_those_of_a_terminal() -> None:
    assert [display_width(text) for text in ("dog", "漢字", "e\u0301", "👩", "")] == [3, 4, 1, 2, 0]
    assert cut("漢字漢字", 5) == "漢字…"
    assert [shade(weight) for weight in (0.0, 0.05, 0.1, 0.3, 0.6, 1.0)] == list(" ·░▒▓█")
    assert [percent(share) for share in (1.0, 0.374, 0.004, 0.0)] == ["100%", "37%", "0.4%", "<0.1%"]


def test_an_ablated_attention_is_shown_as_reading_nothing(small_model: Build) -> None:
    model = small_model("translate recurrent")
    look = model.look("a small dog runs", "the green park", interventions=[heedful.Ablate("cross")])
    lines = list(look_lines(look, attention_table(look)))
    start = next(i for i, line in enumerate(lines) if line.startswith("attention of")) + 2
    assert all(line.endswith("  reads nothing") for line in lines[start : start + 3])
