"""Explain a pass by several methods and measure each; measure methods over several texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from heedful.data.batching import evenly_spaced
from heedful.data.progress import StartProgress, no_progress
from heedful.errors import UsageError
from heedful.inspection.attribution.explained_output import (
    ExplainedOutput,
    ExplainSource,
    Scores,
    explained_outputs,
    output_log_probabilities,
)
from heedful.inspection.attribution.explanation import Attribution, ExplainedWord, Explanation
from heedful.inspection.attribution.faithfulness import (
    FINE,
    CurveSettings,
    FaithfulnessTable,
    OutputCurves,
    measure_curves,
    summarize,
)
from heedful.inspection.attribution.gradients import completeness_gaps
from heedful.inspection.attribution.methods import ATTRIBUTION_METHODS, attribute, checked_methods
from heedful.inspection.attribution.perturbation import perturbation_name
from heedful.inspection.text_pass import TextPass

MOST_TOKENS = 1_000_000
"""Maximum number of tokens read to hide every word of a text once, for every output."""
OUTPUTS_PER_TEXT = 4
"""Evenly spaced outputs of each text that methods are measured on."""


def explain_pass(
    source: ExplainSource,
    text_pass: TextPass,
    *,
    word: int | None = None,
    methods: Sequence[str] | None = None,
    faithfulness: bool = True,
    validation: FaithfulnessTable | None = None,
    interventions: Sequence[str] = (),
    start_progress: StartProgress = no_progress,
) -> Explanation:
    """Attribute the outputs of a pass, or one of them, to the words of its input.

    `validation`: the faithfulness of the methods on other text, for the result.
    """
    names = checked_methods(source, methods)
    outputs = explained_outputs(text_pass, word)
    _require_short(text_pass, outputs)
    with start_progress("explaining", len(names) + faithfulness) as progress:
        scores: dict[str, list[Scores]] = {}
        for name in names:
            scores |= attribute(source, outputs, [name])
            progress(1)
        measured = None
        if faithfulness:
            measured = _measured(source, outputs, scores)
            progress(1)
    probabilities = np.exp(output_log_probabilities(source, [output.text_pass for output in outputs]))
    return Explanation(
        source.short_name,
        source.task,
        text_pass.inputs,
        _output_text(text_pass, outputs),
        tuple(
            ExplainedWord(output.text, output.word, float(probability), output.words)
            for output, probability in zip(outputs, probabilities, strict=True)
        ),
        {name: _attribution(source, name, outputs, scores[name], measured, validation) for name in names},
        {name: obstacle for name, method in ATTRIBUTION_METHODS.items() if (obstacle := method.obstacle(source))},
        perturbation_name(source),
        measured,
        validation,
        tuple(interventions),
    )


def measure_faithfulness(
    source: ExplainSource,
    passes: Sequence[TextPass],
    methods: Sequence[str] | None = None,
    *,
    outputs_per_text: int = OUTPUTS_PER_TEXT,
    progress: Callable[[int], object] = lambda _: None,
) -> FaithfulnessTable:
    """Measure methods over the outputs of several texts, with intervals over texts."""
    curves = []
    for text in faithfulness_curves(source, passes, methods, outputs_per_text=outputs_per_text):
        curves.append(text)
        progress(1)
    if not any(curves):
        raise UsageError("no text has an output that depends on two words or more: faithfulness cannot be measured")
    return summarize(curves, perturbation_name(source))


def faithfulness_curves(
    source: ExplainSource,
    passes: Iterable[TextPass],
    methods: Sequence[str] | None = None,
    *,
    outputs_per_text: int = OUTPUTS_PER_TEXT,
    settings: CurveSettings = FINE,
    seed: int = 0,
) -> Iterator[list[OutputCurves]]:
    """For each text, the curves of some evenly spaced outputs; none for a text of a single word."""
    names = checked_methods(source, methods)
    for number, text_pass in enumerate(passes, seed):
        possible = [output for output in outputs_or_none(text_pass) if len(output.words) > 1]
        outputs = [possible[index] for index in evenly_spaced(len(possible), outputs_per_text)]
        yield measure_curves(source, outputs, attribute(source, outputs, names), number, settings) if outputs else []


def outputs_or_none(text_pass: TextPass) -> list[ExplainedOutput]:
    """The outputs of a pass; an empty list if there is nothing to explain."""
    try:
        return explained_outputs(text_pass)
    except UsageError:  # an empty answer, or nothing before the output
        return []


def _measured(
    source: ExplainSource, outputs: Sequence[ExplainedOutput], scores: Mapping[str, Sequence[Scores]]
) -> FaithfulnessTable | None:
    """The faithfulness on the outputs that depend on several words; a single word has only one order."""
    chosen = [index for index, output in enumerate(outputs) if len(output.words) > 1]
    if not chosen:
        return None
    chosen_scores = {name: [rows[index] for index in chosen] for name, rows in scores.items()}
    curves = measure_curves(source, [outputs[index] for index in chosen], chosen_scores)
    return summarize([curves], perturbation_name(source))


def _require_short(text_pass: TextPass, outputs: Sequence[ExplainedOutput]) -> None:
    tokens = sum(len(output.words) * len(output.text_pass.inputs) for output in outputs)
    if tokens > MOST_TOKENS:
        advice = "explain one word of the output, or a shorter text" if len(outputs) > 1 else "explain a shorter text"
        raise UsageError(
            f"{text_pass.inputs.text!r:.60} has {len(text_pass.inputs.words):,} words and {len(outputs):,} outputs: "
            f"hiding each word once takes {tokens:,} tokens, more than {MOST_TOKENS:,}; {advice}"
        )


def _attribution(
    source: ExplainSource,
    name: str,
    outputs: Sequence[ExplainedOutput],
    scores: Sequence[Scores],
    measured: FaithfulnessTable | None,
    validation: FaithfulnessTable | None,
) -> Attribution:
    table = np.full((len(outputs), len(outputs[0].text_pass.inputs.words)), np.nan)
    for row, output, values in zip(table, outputs, scores, strict=True):
        row[list(output.words)] = values
    return Attribution(
        name,
        ATTRIBUTION_METHODS[name].description,
        table,
        tuple(completeness_gaps(source, outputs, scores)) if name == "integrated-gradients" else None,
        None if measured is None else measured.of(name),
        None if validation is None else validation.of(name),
    )


def _output_text(text_pass: TextPass, outputs: Sequence[ExplainedOutput]) -> str:
    """The whole answer, which contains the outputs."""
    if text_pass.target is not None:
        return text_pass.target.text
    if text_pass.head == "next_token":
        return "".join(output.text for output in text_pass.outputs).strip()
    return " ".join(output.text for output in outputs)
