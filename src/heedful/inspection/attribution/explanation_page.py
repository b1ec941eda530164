"""An explanation as a self-contained HTML page without scripts, usable offline and by keyboard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from heedful.inspection.attribution.explained_output import Scores
from heedful.inspection.attribution.explanation import Attribution, Explanation, relative_scores
from heedful.inspection.attribution.faithfulness import MethodFaithfulness
from heedful.inspection.visible_text import visible

STYLE = """
.why { color-scheme: light dark; font: 14px/1.45 system-ui, sans-serif; font-variant-numeric: tabular-nums;
  color: light-dark(#1b1d21, #e8eaed); background: light-dark(#fff, #14161a); padding: 16px 24px; }
.why h1 { font-size: 20px; margin: 0 0 4px; } .why h2 { font-size: 14px; margin: 16px 0 8px; }
.why p { margin: 0 0 8px; max-width: 60rem; } .why .muted { color: light-dark(#5a5f69, #9aa0ab); font-size: 12px; }
.why table { border-collapse: separate; border-spacing: 2px; } .why .wide { overflow-x: auto; }
.why th { font-weight: 500; text-align: left; padding: 2px 8px; white-space: nowrap; }
.why td { padding: 3px 8px; border-radius: 4px; min-width: 3rem; text-align: right; color: inherit; }
.why summary { cursor: pointer; padding: 4px 0; } .why :focus-visible { outline: 2px solid #3d3fbf; }
"""
CAPTION = (
    "Shade: share of the row's largest score. Blue raises the probability of the output, red lowers it. "
    "Numbers are scores of the method, in nats for occlusion, leave-one-out and integrated gradients."
)
FAITHFULNESS = (
    "Words are hidden in the order of a method, and shown again: the area is between its curves of the output's "
    "probability and those of random orders. 0 is chance; a method whose interval contains 0 is not better than chance."
)


def explanation_page(explanation: Explanation) -> str:
    """The whole page."""
    title = escape(f"{explanation.model}: why {explanation.output_text:.60}")
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>body{{margin:0}}</style><body>{explanation_tables(explanation)}</body></html>\n"
    )


def explanation_tables(explanation: Explanation) -> str:
    """The content of the page: input and answer, scores by method, and the methods' faithfulness."""
    changes = "".join(f" · {intervention}" for intervention in explanation.interventions)
    parts = [
        f"<style>{STYLE}</style><main class='why'>",
        f"<h1>{escape(explanation.model)} · {escape(explanation.task)}{escape(changes)}</h1>",
        f"<p>in: <bdi>{escape(explanation.inputs.text)}</bdi><br>out: <bdi>{escape(explanation.output_text)}</bdi></p>",
        *(_one_output(explanation) if len(explanation.outputs) == 1 else _several_outputs(explanation)),
        f"<p class='muted'>{CAPTION}</p>",
        *_faithfulness(explanation),
        "</main>",
    ]
    return "".join(parts)


def _one_output(explanation: Explanation) -> Iterator[str]:
    (output,) = explanation.outputs
    yield f"<h2>Why <bdi>{escape(output.text)}</bdi>, probability {output.probability:.1%}</h2>"
    table = np.stack([attribution.scores[0] for attribution in explanation.attributions.values()])
    yield _table(list(explanation.attributions), explanation.inputs.words, table)


def _several_outputs(explanation: Explanation) -> Iterator[str]:
    rows = [f"{output.text} {output.probability:.0%}" for output in explanation.outputs]
    for result in explanation.ranked:
        is_open, description = " open" if result.method == explanation.most_faithful else "", escape(result.description)
        yield f"<details{is_open}><summary>{result.method}: {description} {escape(_measured(result))}</summary>"
        yield f"{_table(rows, explanation.inputs.words, result.scores)}</details>"


def _measured(attribution: Attribution) -> str:
    measured = attribution.validation or attribution.faithfulness
    return "· faithfulness not measured" if measured is None else f"· faithfulness {measured}"


def _table(rows: Sequence[str], columns: Sequence[str], scores: Scores) -> str:
    head = "".join(f"<th scope='col'><bdi>{escape(visible(word))}</bdi></th>" for word in columns)
    body = "".join(
        f"<tr><th scope='row'><bdi>{escape(row)}</bdi></th>{''.join(map(_cell, values, shares))}</tr>"
        for row, values, shares in zip(rows, scores.tolist(), relative_scores(scores).tolist(), strict=True)
    )
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class='wide' tabindex='0'>{table}</div>"


def _cell(score: float, share: float) -> str:
    if np.isnan(score):
        return "<td></td>"
    color = "60 114 218" if share >= 0 else "214 76 60"
    return f"<td style='background: rgb({color} / {abs(share) * 0.75:.2f})'>{score:.3g}</td>"


def _faithfulness(explanation: Explanation) -> Iterator[str]:
    yield "<h2>Faithfulness of each method</h2>"
    titles = ("method", "on this text", "on validation text", "")
    yield f"<table><thead><tr>{''.join(f'<th>{title}</th>' for title in titles)}</tr></thead><tbody>"
    for result in explanation.ranked:
        gap = "" if (gaps := result.completeness_gaps) is None else f"completeness gap {max(gaps):.2g} nats"
        cells = (_number(result.faithfulness), _number(result.validation), gap)
        yield f"<tr><th scope='row'>{result.method}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    yield "</tbody></table>"
    yield f"<p class='muted'>{FAITHFULNESS} Hidden words are {explanation.perturbation}.</p>"
    for name, reason in explanation.unavailable.items():
        yield f"<p class='muted'>No {name}: {escape(reason)}.</p>"


def _number(measured: MethodFaithfulness | None) -> str:
    return "not measured" if measured is None else str(measured)
