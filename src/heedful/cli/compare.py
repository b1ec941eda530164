"""heedful compare: two models side by side, on one text or on held-out files."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Annotated

import typer

from heedful.cli import decoding_options as options
from heedful.cli.standard_streams import print_message, write_output
from heedful.cli.text_io import OnBadLine
from heedful.errors import UsageError, is_unicode
from heedful.files import write_atomic

option = options.option
FILE_HINTS = {
    "translate": "; or on files: --data test.en --data test.de",
    "classify": "; or on a file: --data test.tsv",
}
"""The tasks whose models are compared on files."""


def compare(
    first: Annotated[Path, typer.Argument(metavar="MODEL_A", help="Model folder.")],
    second: Annotated[Path, typer.Argument(metavar="MODEL_B", help="Model folder of the same task.")],
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="A text to answer.")] = None,
    data: Annotated[
        list[Path] | None,
        option(
            options.INPUT_OUTPUT, metavar="FILE", help="Compare on held-out files instead, by length; may be repeated."
        ),
    ] = None,
    columns: Annotated[
        str | None, option(options.INPUT_OUTPUT, metavar="A,B", help="Columns of a table, by name or number.")
    ] = None,
    out: options.ResultFile = None,
    as_json: options.AsJson = False,
    on_bad_line: options.SkipBad = "fail",
    device: options.Device = "auto",
) -> None:
    """Show two models of one task side by side: answers, probabilities and attention, or scores by length.

    Examples:
      heedful compare translate-1 recurrent-1 "A man rides a bicycle."
      heedful compare translate-1 recurrent-1 "A man rides a bicycle." --out compare.html
      heedful compare translate-1 recurrent-1 --data test.en --data test.de
    """
    if (text is None) == (not data):
        raise UsageError("give either a text, or files with --data")
    from heedful.inspection.result_file import check_result_file

    if out is not None:
        check_result_file(out)
    if data:
        compare_data(first, second, data, columns, on_bad_line, out, as_json, device)
        return
    if columns:
        raise UsageError("--columns is for --data")
    if text is not None and not is_unicode(text):
        raise UsageError(f"text {text!r:.60} is not valid UTF-8; a terminal in UTF-8 passes every character")
    from heedful.evaluation.comparison_text import comparison_lines
    from heedful.evaluation.model_comparison import compare as compare_models

    result = compare_models(first, second, text or "", device=device)
    if out is not None:
        result.save(out)
        print_message(f"{out} written")
    if as_json:
        write_output(json.dumps(result.to_json(), ensure_ascii=False) + "\n")
    elif out is None:
        width = shutil.get_terminal_size((120, 24)).columns
        write_output("".join(f"{line}\n" for line in comparison_lines(result, width)))
        words = " ".join(shlex.quote(str(value)) for value in (first, second, text))
        on_files = FILE_HINTS.get(result.looks[0].task, "")
        print_message(f"next: heedful compare {words} --out compare.html{on_files}")


def compare_data(
    first: Path, second: Path, files: list[Path], columns: str | None, on_bad_line: OnBadLine,
    out: Path | None, as_json: bool, device: str,
) -> None:  # fmt: skip
    """Compare on held-out files, with progress."""
    from heedful.evaluation.comparison_text import file_comparison_lines
    from heedful.evaluation.file_comparison import compare_files
    from heedful.training.reporting.display import progress_listeners
    from heedful.training.reporting.events import Events

    if out is not None and out.suffix.lower() != ".json":
        raise UsageError(f"{out}: a comparison on files is written as .json; pages and pictures are of one text")
    result = compare_files(
        first, second, *files, columns=columns or (), on_bad_line=on_bad_line, device=device,
        start_progress=Events(*progress_listeners(True)).stage,
    )  # fmt: skip
    content = json.dumps(result.to_json(), ensure_ascii=False) + "\n"
    if out is not None:
        write_atomic(out, content)
        print_message(f"{out} written")
    if as_json:
        write_output(content)
    elif out is None:
        write_output("".join(f"{line}\n" for line in file_comparison_lines(result)))
