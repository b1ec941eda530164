"""An explanation as text for a terminal: shaded scores of the input's words, and the faithfulness of each method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from heedful.inspection.attribution.explained_output import Scores
from heedful.inspection.attribution.explanation import Attribution, Explanation, relative_scores
from heedful.inspection.attribution.faithfulness import FaithfulnessTable, MethodFaithfulness
from heedful.inspection.look_text import SHADES, cut, display_width, percent
from heedful.inspection.visible_text import visible

LEGEND = "shade: share of the row's largest score   − lowers the probability"
MAX_LABEL = 24
NARROWEST = 3


def explanation_lines(explanation: Explanation, width: int = 100) -> Iterator[str]:
    """The lines of an explanation: every method for one output, else a table by the most faithful method."""
    yield " · ".join([explanation.model, explanation.task, *map(str, explanation.interventions)])
    yield cut(f"in   {visible(explanation.inputs.text)}", width)
    yield cut(f"out  {visible(explanation.output_text)}", width)
    yield ""
    if len(explanation.outputs) == 1:
        yield from one_output_lines(explanation, width)
    else:
        yield from table_of_words(explanation, width)
    yield ""
    yield from faithfulness_lines(explanation)


def one_output_lines(explanation: Explanation, width: int) -> Iterator[str]:
    """One row for each method."""
    (output,) = explanation.outputs
    number = "" if output.word is None else f" ({'mask' if explanation.task == 'fill' else 'word'} {output.word})"
    yield f"why {output.text}{number}, probability {percent(output.probability)}   {LEGEND}"
    names = list(explanation.attributions)
    table = np.stack([attribution.scores[0] for attribution in explanation.attributions.values()])
    yield from shaded_table(names, explanation.inputs.words, table, width)


def table_of_words(explanation: Explanation, width: int) -> Iterator[str]:
    """Words of the output × words of the input."""
    method = explanation.most_faithful
    yield f"why each word, by {method}   {LEGEND}"
    rows = [f"{output.word} {visible(output.text)} {percent(output.probability)}" for output in explanation.outputs]
    yield from shaded_table(rows, explanation.inputs.words, explanation.attributions[method].scores, width)


def shaded_table(rows: Sequence[str], columns: Sequence[str], scores: Scores, width: int) -> Iterator[str]:
    """Scores as shades under the numbered words of the input, wrapped to the width."""
    label = min(MAX_LABEL, max(map(display_width, rows)))
    heads = [f"{index} {visible(word)}" for index, word in enumerate(columns)]
    sizes = [max(NARROWEST, min(MAX_LABEL, display_width(head))) for head in heads]
    shares = relative_scores(scores)
    start = 0
    while start < len(columns):
        end = start + 1
        while end < len(columns) and label + sum(size + 1 for size in sizes[start : end + 1]) <= width:
            end += 1
        parts = range(start, end)
        yield " ".join([" " * label, *(_padded(heads[i], sizes[i]) for i in parts)]).rstrip()
        for row, values in zip(rows, shares, strict=True):
            cells = (_cell(values[i]).ljust(sizes[i]) for i in parts)
            yield " ".join([_padded(row, label), *cells]).rstrip()
        start = end


def _cell(share: float) -> str:
    """A shade for a share of the row's largest score, with a sign where it lowers the probability."""
    if np.isnan(share):
        return ""
    shade = SHADES[round(abs(share) * (len(SHADES) - 1))]
    return ("−" if share < 0 and shade != " " else "") + 2 * shade


def faithfulness_lines(explanation: Explanation) -> Iterator[str]:
    """The methods, best first, with their measured faithfulness and the texts it was measured on."""
    ranked = explanation.ranked
    if explanation.faithfulness is None and explanation.validation is None:
        alone = all(len(output.words) == 1 for output in explanation.outputs)
        why = " (one word has one order)" if alone else ""
        yield f"faithfulness not measured{why}: it is unknown whether these scores explain the output"
        yield "  ".join(attribution.method for attribution in ranked)
        return
    width = max(len(attribution.method) for attribution in ranked)
    yield f"{'method':<{width}}  {'faithful on this text':<27}  {'on validation text':<27}".rstrip()
    for attribution in ranked:
        numbers = (_number(attribution.faithfulness), _number(attribution.validation))
        yield f"{attribution.method:<{width}}  {numbers[0]:<27}  {numbers[1]:<27} {_gap(attribution)}".rstrip()
    if table := explanation.faithfulness:
        yield "faithful: area between the method's curves and random orders, 0 = chance, with 95% intervals over"
        yield f"{_size(table)}, hidden words {table.perturbation}" + _of_validation(explanation)
    for name, reason in explanation.unavailable.items():
        yield f"no {name}: {reason}"


def _number(measured: MethodFaithfulness | None) -> str:
    return "not measured" if measured is None else str(measured)


def _gap(attribution: Attribution) -> str:
    gaps = attribution.completeness_gaps
    return "" if gaps is None else f"completeness gap {max(gaps):.2g}"


def _size(table: FaithfulnessTable) -> str:
    if table.resampled == "texts":
        return f"{table.outputs} outputs of {table.texts} texts"
    return f"{table.outputs} outputs" if table.resampled == "outputs" else table.resampled


def _of_validation(explanation: Explanation) -> str:
    return "" if explanation.validation is None else f"; validation: {_size(explanation.validation)}"


def _padded(text: str, width: int) -> str:
    text = cut(text, width)
    return text + " " * (width - display_width(text))
