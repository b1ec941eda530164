"""An explanation: how much each word of the input matters to an output, by several methods, and how faithful each is.

explanation = translator.explain("A dog runs.", word=1)
explanation.attributions["occlusion"].scores[0]      # one number for each word of the input
explanation.save("why.html")
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heedful.inspection.attribution.explained_output import Scores
from heedful.inspection.attribution.faithfulness import FaithfulnessTable, MethodFaithfulness
from heedful.inspection.result_file import write_result
from heedful.text.token_rows import TokenRow


def relative_scores(scores: Scores) -> Scores:
    """Scores as shares of the largest of their row."""
    largest = np.nanmax(np.abs(scores), axis=1, keepdims=True)
    return np.asarray(np.divide(scores, largest, out=np.zeros_like(scores), where=largest > 0))


@dataclass(frozen=True)
class ExplainedWord:
    """An output that was explained: a word, a class, an answer or the word of a mask."""

    text: str
    word: int | None
    """The number of the word in the output text, or of the mask; None for a class or an answer."""
    probability: float
    words: tuple[int, ...]
    """The input words that the output may depend on."""

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "word": self.word, "probability": self.probability, "words": list(self.words)}


@dataclass(frozen=True, eq=False)
class Attribution:
    """The scores of one method."""

    method: str
    description: str
    scores: Scores
    """Outputs × words of the input; NaN where the output cannot depend on the word."""
    completeness_gaps: tuple[float, ...] | None = None
    """Integrated gradients: for each output, |sum of the scores − change of log p|, in nats."""
    faithfulness: MethodFaithfulness | None = None
    """Measured on this text."""
    validation: MethodFaithfulness | None = None
    """Measured on validation text, during training or later."""

    def to_json(self) -> dict[str, Any]:
        rows = [[None if np.isnan(x) else float(f"{x:.6g}") for x in row] for row in self.scores.tolist()]
        return {
            "name": self.method,
            "description": self.description,
            "scores": rows,
            "completeness_gaps": None if self.completeness_gaps is None else list(self.completeness_gaps),
            "faithfulness": None if self.faithfulness is None else self.faithfulness.model_dump(),
            "validation": None if self.validation is None else self.validation.model_dump(),
        }


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a model gave an output: scores of the input's words by each method; displays in notebooks."""

    model: str
    task: str
    inputs: TokenRow
    output_text: str
    """The answer: the target, the label, the answer or the words in the masks."""
    outputs: tuple[ExplainedWord, ...]
    attributions: dict[str, Attribution]
    """The scores by method."""
    unavailable: dict[str, str]
    """The methods that this model does not support, and why."""
    perturbation: str
    """How words were hidden: removed, or replaced by [MASK]."""
    faithfulness: FaithfulnessTable | None = None
    """The faithfulness of every method on this text."""
    validation: FaithfulnessTable | None = None
    """The faithfulness of every method on validation text."""
    interventions: tuple[str, ...] = ()
    """Descriptions of the active interventions."""

    @property
    def ranked(self) -> list[Attribution]:
        """The methods by decreasing faithfulness: on validation text if measured there, else on this text."""

        def area(attribution: Attribution) -> float:
            measured = attribution.validation or attribution.faithfulness
            return -measured.area if measured else 0.0

        return sorted(self.attributions.values(), key=area)

    @property
    def most_faithful(self) -> str:
        """The first of the ranked methods."""
        return self.ranked[0].method

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "model": self.model,
            "task": self.task,
            "inputs": self.inputs.to_json(),
            "output_text": self.output_text,
            "outputs": [output.to_json() for output in self.outputs],
            "methods": [attribution.to_json() for attribution in self.attributions.values()],
            "most_faithful": self.most_faithful,
            "unavailable": self.unavailable,
            "perturbation": self.perturbation,
            "faithfulness": None if self.faithfulness is None else self.faithfulness.model_dump(mode="json"),
            "validation": None if self.validation is None else self.validation.model_dump(mode="json"),
            "interventions": list(self.interventions),
        }

    def save(self, file: str | Path) -> Path:
        """Write a page that works offline (.html), a picture (.png, .svg, .pdf) or all values (.json)."""

        def draw(path: Path, kind: str) -> None:
            from heedful.inspection.attribution.explanation_picture import draw_explanation

            draw_explanation(self, path, kind)

        return write_result(file, page=self.to_html, draw=draw, values=self.to_json)

    def to_html(self) -> str:
        """A self-contained HTML page."""
        from heedful.inspection.attribution.explanation_page import explanation_page

        return explanation_page(self)

    def _repr_html_(self) -> str:
        """The tables of the page, for display in a notebook."""
        from heedful.inspection.attribution.explanation_page import explanation_tables

        return explanation_tables(self)

    def __str__(self) -> str:
        from heedful.inspection.attribution.explanation_text import explanation_lines

        return "\n".join(explanation_lines(self))
