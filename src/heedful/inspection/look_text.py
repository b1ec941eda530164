"""A look as text for a terminal: the answer with probabilities, shaded attention, and the logit lens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from unicodedata import bidirectional, combining, east_asian_width

from heedful.inspection.attention_table import AttentionTable
from heedful.inspection.logit_lens import LogitLens
from heedful.inspection.look_result import Look
from heedful.inspection.predictions import Prediction
from heedful.inspection.visible_text import visible

SHADES = " ·░▒▓█"
SHADE_WEIGHTS = (0.02, 0.1, 0.25, 0.5, 0.75)
"""The lowest weight of each shade."""
LEGEND = "░ 10%  ▒ 25%  ▓ 50%  █ 75%"
MAX_LABEL = 18
WITHOUT_WIDTH = "\u200c\u200d\u200e\u2068\u2069\ufe0f"
RUNNERS_UP = 3


def look_lines(look: Look, table: AttentionTable | None, width: int = 100) -> Iterator[str]:
    """The lines of a look: input and answer, the attention table, and the logit lens if recorded."""
    yield f"{look.model} · {look.task}" + "".join(f" · {intervention}" for intervention in look.interventions)
    yield f"in   {isolated(_one_line(look.inputs.text))}"
    if look.output_text:
        yield f"out  {isolated(_one_line(look.output_text))}"
    if look.outputs:
        yield ""
        yield from output_lines(look, width)
    if table is not None:
        yield ""
        yield from table_lines(table, width)
    if look.lens is not None:
        yield ""
        yield from lens_lines(look, look.lens, width)


def output_lines(look: Look, width: int) -> Iterator[str]:
    """Each output with its probability, and the most probable alternatives."""
    labels = [visible(output.text) for output in look.outputs]
    column = min(MAX_LABEL, max(map(display_width, labels)))
    for label, output in zip(labels, look.outputs, strict=True):
        runners_up = [prediction for prediction in output.top if prediction.label != output.label][:RUNNERS_UP]
        line = f"{_padded(label, column)} {percent(output.probability):>5}"
        yield cut(f"{line}   else: {_predictions(runners_up)}" if runners_up else line, width)


def table_lines(table: AttentionTable, width: int) -> Iterator[str]:
    """A shaded table with numbered columns if it fits, and next to each row the words it attends to most."""
    label = min(MAX_LABEL, max(map(display_width, table.rows)))
    shaded = label + 2 * len(table.columns) + 24 <= width
    yield cut(f"attention of {table.title}" + (f"   {LEGEND}" if shaded else ""), width)
    if shaded:
        yield " " * (label + 1) + _column_numbers(len(table.columns))
    for name, weights in zip(table.rows, table.weights.tolist(), strict=True):
        cells = "".join(2 * shade(weight) for weight in weights) if shaded else ""
        most = sorted(range(len(weights)), key=lambda index: -weights[index])[: 2 if shaded else 4]
        read = ", ".join(f"{i} {isolated(table.columns[i])} {percent(weights[i])}" for i in most if weights[i])
        yield cut(f"{_padded(name, label)} {cells}  {read or 'reads nothing'}", width)


def _column_numbers(count: int) -> str:
    """Numbers above columns of two characters: all numbers up to ten columns, else every fifth."""
    step = 1 if count <= 10 else 5
    return "".join(f"{index:<{2 * step}}" for index in range(0, count, step)).rstrip()


def lens_lines(look: Look, lens: LogitLens, width: int) -> Iterator[str]:
    """For each output the most probable label after every layer, with its probability."""
    yield "what each layer would have said (logit lens)"
    names = ["output", *(layer.name for layer in lens.layers)]
    rows = [
        [visible(output.text), *(_predictions(layer.outputs[index].top[:1]) for layer in lens.layers)]
        for index, output in enumerate(look.outputs)
    ]
    widths = [min(MAX_LABEL, max(map(display_width, column))) for column in zip(names, *rows, strict=True)]
    for row in [names, *rows]:
        yield cut("  ".join(_padded(cell, size) for cell, size in zip(row, widths, strict=True)).rstrip(), width)


def shade(weight: float) -> str:
    """A block character that is darker for larger weights."""
    return SHADES[sum(weight >= limit for limit in SHADE_WEIGHTS)]


def percent(share: float) -> str:
    """A share with its significant digits: 100%, 37%, 0.4%, <0.1%."""
    if share < 0.001:
        return "<0.1%"
    return f"{share:.1%}" if share < 0.01 else f"{share:.0%}"


def display_width(text: str) -> int:
    """The width in terminal columns: two for wide characters, none for combining ones."""
    drawn = (c for c in text if not combining(c) and c not in WITHOUT_WIDTH)
    return sum(1 + (east_asian_width(c) in "WF") for c in drawn)


def cut(text: str, width: int) -> str:
    """Truncate a line to the width, with "…" for the rest."""
    if display_width(text) <= width:
        return text
    kept = ""
    for character in text:
        if display_width(kept + character) > width - 1:
            break
        kept += character
    return kept + "…"


def _padded(label: str, width: int) -> str:
    label = cut(label, width)
    return isolated(label) + " " * (width - display_width(label))


def isolated(text: str) -> str:
    """Isolate right-to-left text (Unicode bidi), so that it does not reorder the rest of the line."""
    return f"\u2068{text}\u2069\u200e" if any(bidirectional(c) in ("R", "AL", "AN") for c in text) else text


def _one_line(text: str) -> str:
    return " ".join(visible(word) for word in text.split(" "))


def _predictions(predictions: Sequence[Prediction]) -> str:
    return ", ".join(f"{isolated(visible(label.text))} {percent(label.probability)}" for label in predictions)
