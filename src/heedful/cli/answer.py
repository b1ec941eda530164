"""heedful answer: what a passage says to a question."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from heedful.cli import decoding_options as about
from heedful.cli.text_io import Notes, answers_to, lines_of, progress
from heedful.cli.training_options import AsJson, Device
from heedful.errors import DataError, UsageError

if TYPE_CHECKING:
    from heedful.data.progress import ProgressCallback
    from heedful.data.qa_reader import Question
    from heedful.inference.question_answerer import ExtractedAnswer

NOTHING = "no answer"


def answer(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    question: Annotated[str | None, typer.Option(help="What to look for.")] = None,
    passage: Annotated[str | None, typer.Option(help="Where; without it, standard input.")] = None,
    passage_file: Annotated[Path | None, typer.Option(help="Or a text file: plain, .gz or .xz.")] = None,
    input_: Annotated[
        Path | None,
        typer.Option("--input", help="Many at once: .jsonl, .csv or .tsv with question and passage; or a SQuAD .json."),
    ] = None,
    output: about.Output = None,
    as_json: AsJson = False,
    top: Annotated[int, typer.Option(min=1, help="Answers to each question, the best first (with --json).")] = 1,
    threshold: Annotated[
        float | None, typer.Option(help="Say 'no answer' below this score. Default: as found when it was trained.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=0, help="Tokens from a window of a long passage to the next; 0: no windows.")
    ] = None,
    on_bad_line: Annotated[
        Literal["fail", "skip"], typer.Option(help="Stop at a question that cannot be read, or leave it out.")
    ] = "fail",
    device: Device = "auto",
) -> None:
    """Find the answer to QUESTION in PASSAGE: the words, the characters they stand at, the score (log-odds against no
    answer) and the probability, between tabs. One line out for each question in."""
    if input_ is not None and (question, passage, passage_file) != (None, None, None):
        raise UsageError(f"questions come from the command line or from --input {input_}: give one or the other")
    if input_ is None and question is None:
        raise UsageError("there is nothing to answer: give --question, and a --passage; or --input FILE")
    if passage is not None and passage_file is not None:
        raise UsageError(f"the passage comes from --passage or from --passage-file {passage_file}: give one of them")
    trained = about.ready(model, "answer", device)
    options: dict[str, Any] = {"top": top, "threshold": threshold, "stride": stride}
    notes = Notes()

    def leave_out(asked: Question, why: object) -> None:
        """Stop at a question that cannot be read, or say so and go on."""
        if on_bad_line == "fail":
            raise DataError(f"{asked.path}:{asked.line}: question {asked.id!r:.40}: {why}")
        notes(asked.line, f"question {asked.id!r:.40} is left out: {why}")

    with progress(input_, output) as watch, answers_to(output) as write:
        if input_ is not None:
            asked = _asked(input_, on_bad_line, notes, watch)
            found = trained.iter_answer(asked, on_trouble=leave_out, **options)
        else:
            text = passage if passage is not None else _passage(passage_file, notes)
            found = iter([trained.answer(question or "", text, **options)])
        for each in found:
            write(json.dumps(each.to_json(), ensure_ascii=False) if as_json else plain(each))
    notes.close()


def plain(answer: ExtractedAnswer) -> str:
    """The words, their place, the score and the probability."""
    if answer.best is None:
        return f"{NOTHING}\t\t{-answer.spans[0].score:.2f}\t{answer.no_answer_probability:.1%}"
    span = answer.best
    return f"{' '.join(span.text.split())}\t{span.start}-{span.end}\t{span.score:.2f}\t{span.probability:.1%}"


def _passage(file: Path | None, notes: Notes) -> str:
    """A file's text, or that of standard input, to the last character but the line end."""
    from heedful.data.line_reader import read_text_file

    if file is not None:
        return read_text_file(file)
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("there is no passage: give --passage, --passage-file, or standard input")
    return "\n".join(line for line in lines_of(None, None, "fail", notes) if line is not None)


def _asked(file: Path, on_bad_line: str, notes: Notes, watch: ProgressCallback | None) -> Iterator[Question]:
    """The file's questions. One that cannot be read stops the work, or is left out with a word."""
    from heedful.data.line_reader import BadLine
    from heedful.data.qa_reader import scan_questions

    for row in scan_questions([file], answered=False, progress=watch):
        if not isinstance(row, BadLine):
            yield row
        elif on_bad_line == "fail":
            raise DataError(str(row))
        else:
            notes(row.line, f"left out: {row.message}")
