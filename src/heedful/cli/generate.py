"""heedful generate: go on from a prompt."""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from heedful.cli import decoding_options as about
from heedful.cli.text_io import Notes, answers_to, lines_of, piped, progress, say
from heedful.cli.training_options import AsJson, Device


def generate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    prompt: Annotated[
        str | None, typer.Argument(help="Where to begin; without it, lines of standard input. '': a new document.")
    ] = None,
    input_: about.Input = None,
    output: about.Output = None,
    as_json: AsJson = False,
    temperature: about.Temperature = None,
    top_k: about.TopK = None,
    top_p: about.TopP = None,
    min_p: about.MinP = None,
    repetition_penalty: about.RepetitionPenalty = None,
    seed: about.Seed = None,
    min_length: about.MinLength = None,
    max_length: about.MaxLength = None,
    stop: about.Stop = None,
    forbid: about.Forbidden = None,
    beam: about.Beam = None,
    length_penalty: about.LengthPenalty = None,
    n_best: about.NBest = None,
    exact: about.Exact = False,
    engine: about.Engine = "auto",
    int8: about.Int8 = False,
    on_bad_line: about.SkipBad = "fail",
    device: Device = "auto",
) -> None:
    """Go on from PROMPT, word by word as they are written; or from each line of standard input or a file, to the end of
    the line (with --json past it)."""
    options = about.given(locals())
    trained = about.ready(model, "generate", device)
    if prompt is None and input_ is None and sys.stdin is not None and sys.stdin.isatty():
        prompt = ""
    one_text = prompt is not None and (n_best or 1) == 1 and (beam or 1) == 1
    if one_text and not as_json and output is None:
        _stream(trained, prompt or "", options)
        return
    if not as_json:
        options["stop"] = (*options["stop"], "\n")
    notes = Notes()
    with progress(input_, output) as watch:
        prompts = lines_of(None if prompt is None else [prompt], input_, on_bad_line, notes, watch)
        found = trained.iter_generate(prompts, keep_blank=prompt is None, **options)
        with answers_to(output) as write:
            for number, answer in enumerate(found, 1):
                texts = [answer.prompt + each.text for each in (answer, *answer.alternatives)]
                plain = texts[0] if len(texts) == 1 else "\t".join(text.replace("\t", " ") for text in texts)
                write(json.dumps(answer.to_json(), ensure_ascii=False) if as_json else plain)
                for warning in answer.warnings:
                    notes(number, warning)
    notes.close()


def _stream(trained: Any, prompt: str, options: dict[str, Any]) -> None:
    pieces = trained.stream(prompt, **options)
    for warning in trained.warnings(prompt):
        say(warning)
    with piped():
        try:
            for piece in chain([prompt], pieces):
                _show(piece)
        finally:
            _show("\n")


def _show(text: str) -> None:
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()
