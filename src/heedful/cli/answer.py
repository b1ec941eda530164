"""heedful answer: extract answers from passages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from heedful.cli import decoding_options as options
from heedful.cli.intervention_options import InterventionFile, Without, read_interventions
from heedful.cli.text_io import LineStream
from heedful.errors import DataError, UsageError

if TYPE_CHECKING:
    from heedful.data.qa_reader import Question
    from heedful.inference.question_answerer import ExtractedAnswer

NO_ANSWER = "no answer"


def answer(
    model: options.Model,
    question: Annotated[str | None, typer.Option(help="The question.")] = None,
    passage: Annotated[str | None, typer.Option(help="The passage; default: standard input.")] = None,
    passage_file: Annotated[Path | None, typer.Option(help="Text file with the passage: plain, .gz or .xz.")] = None,
    input_: Annotated[
        Path | None,
        typer.Option("--input", help="Many questions: .jsonl, .csv or .tsv with question and passage, or SQuAD .json."),
    ] = None,
    output: options.Output = None,
    as_json: options.AsJson = False,
    top: Annotated[int, typer.Option(min=1, help="Answers per question, best first.")] = 1,
    threshold: Annotated[
        float | None, typer.Option(show_default="fitted in training", help="Below this score, there is no answer.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=0, help="Stride in tokens between windows of a long passage; 0 = no windows.")
    ] = None,
    without: Without = None,
    interventions: InterventionFile = None,
    on_bad_line: Annotated[
        Literal["fail", "skip"], typer.Option(help="Unreadable questions: stop, or leave them out.")
    ] = "fail",
    device: options.Device = "auto",
) -> None:
    """Extract the answer to a question from a passage.

    One line out for each question in: answer, character positions, score (log-odds against no answer) and probability,
    separated by tabs.

    Examples:
      heedful answer answer-1 --question "Who wrote it?" --passage-file page.txt
      heedful answer answer-1 --input questions.jsonl --json
    """
    from heedful import QuestionAnswerer
    from heedful.loading import load_as

    if input_ is not None and (question, passage, passage_file) != (None, None, None):
        raise UsageError(f"questions come from the command line or from --input {input_}: give one or the other")
    if input_ is None and question is None:
        raise UsageError("there is no question: give --question and --passage, or --input FILE")
    if passage is not None and passage_file is not None:
        raise UsageError(f"the passage comes from --passage or from --passage-file {passage_file}: give one of them")
    answerer = load_as(QuestionAnswerer, model, device=device)
    changes = read_interventions(answerer, without, interventions)

    def on_error(question: Question, reason: object) -> None:
        if on_bad_line == "fail":
            raise DataError(f"{question.path}:{question.line}: question {question.id!r:.40}: {reason}")
        lines.warn(question.line, f"question {question.id!r:.40} is left out: {reason}")

    with LineStream(None, input_, output, on_bad_line) as lines:
        if input_ is not None:
            questions = read_questions(input_, lines)
            results = answerer.iter_answer(
                questions, on_error=on_error, top=top, threshold=threshold, stride=stride, interventions=changes
            )
        else:
            text = passage if passage is not None else read_passage(passage_file)
            results = iter([
                answerer.answer(
                    question or "", text, top=top, threshold=threshold, stride=stride, interventions=changes
                )
            ])  # fmt: skip
        for result in results:
            lines.write(result.to_json() if as_json else plain(result, top))


def plain(answer: ExtractedAnswer, top: int) -> str:
    """The `top` answers with their positions, scores and probabilities, separated by tabs."""
    fields = [
        f"{' '.join(span.text.split())}\t{span.start}-{span.end}\t{span.score:.4f}\t{span.probability:.4f}"
        for span in answer.spans
    ]
    if answer.best is None:
        fields = [f"{NO_ANSWER}\t\t{-answer.spans[0].score:.4f}\t{answer.no_answer_probability:.4f}", *fields]
    return "\t".join(fields[:top])


def read_passage(file: Path | None) -> str:
    """A file's text, or that of standard input, without the last line break."""
    from heedful.data.line_reader import read_text_file

    if file is not None:
        return read_text_file(file, once=True)
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("there is no passage: give --passage, --passage-file, or standard input")
    return "\n".join(line for line in LineStream(None, None, None) if line is not None)


def read_questions(file: Path, lines: LineStream) -> Iterator[Question]:
    """The questions of a file; one that cannot be read is an error, or left out with a warning."""
    from heedful.data.line_reader import BadLine
    from heedful.data.qa_reader import scan_questions

    for row in scan_questions([file], answered=False, progress=lines.progress):
        if not isinstance(row, BadLine):
            yield row
        elif lines.on_bad_line == "fail":
            raise DataError(str(row))
        else:
            lines.warn(row.line, f"left out: {row.message}")
