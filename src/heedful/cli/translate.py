"""heedful translate: texts in, translations out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli import decoding_options as about
from heedful.cli.text_io import Notes, answers_to, lines_of, progress, say
from heedful.cli.training_options import AsJson, Device

if TYPE_CHECKING:
    from heedful.generation.results import Translation


def translate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    text: Annotated[list[str] | None, typer.Argument(help="Texts; without any, lines of standard input.")] = None,
    input_: about.Input = None,
    output: about.Output = None,
    as_json: AsJson = False,
    beam: about.Beam = None,
    length_penalty: about.LengthPenalty = None,
    n_best: about.NBest = None,
    temperature: about.Temperature = None,
    top_k: about.TopK = None,
    top_p: about.TopP = None,
    min_p: about.MinP = None,
    repetition_penalty: about.RepetitionPenalty = None,
    seed: about.Seed = None,
    min_length: about.MinLength = None,
    max_length: about.MaxLength = None,
    stop: about.Stop = None,
    prefix: Annotated[str | None, typer.Option(help="What each translation must begin with.")] = None,
    forbid: about.Forbidden = None,
    glossary: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Lines of a source term, a tab, and the target term it requires."),
    ] = None,
    keep: Annotated[bool, typer.Option(help="Placeholders, tags and addresses come out as they went in.")] = True,
    alignments: Annotated[
        bool, typer.Option("--alignments", help="Add which source word made which word: ||| 0-0 1-2, from 0.")
    ] = False,
    exact: about.Exact = False,
    engine: about.Engine = "auto",
    int8: about.Int8 = False,
    on_bad_line: about.SkipBad = "fail",
    device: Device = "auto",
) -> None:
    """Translate TEXT, or lines of standard input or a file: exactly one line out for each line in."""
    options = about.given(locals()) | {"keep": keep, "alignments": alignments, "word_probabilities": as_json}
    options |= {} if glossary is None else {"glossary": str(glossary)}
    trained = about.ready(model, "translate", device)
    notes = Notes()
    if alignments and trained.alignment is None:
        say("this model's folder does not say which head aligns: the mean of the last layer but one is used")
    with progress(input_, output) as watch:
        found = trained.iter_translate(lines_of(text, input_, on_bad_line, notes, watch), **options)
        with answers_to(output) as write:
            for number, answer in enumerate(found, 1):
                write(json.dumps(answer.to_json(), ensure_ascii=False) if as_json else _plain(answer))
                for warning in answer.warnings:
                    notes(number, warning)
    notes.close()


def _plain(answer: Translation) -> str:
    """The translation; several stand side by side, between tabs."""
    text = answer.text
    if answer.alternatives:
        text = "\t".join(each.text.replace("\t", " ") for each in (answer, *answer.alternatives))
    if answer.alignment is None:
        return text
    return f"{text} ||| {' '.join(f'{source}-{target}' for source, target in answer.alignment)}"
