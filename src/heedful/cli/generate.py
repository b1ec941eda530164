"""heedful generate: continue a prompt."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli import decoding_options as options
from heedful.cli.decoding_options import SAMPLING, SEARCH, option
from heedful.cli.intervention_options import InterventionFile, Without, read_interventions
from heedful.cli.standard_streams import print_message, write_output
from heedful.cli.text_io import LineStream

if TYPE_CHECKING:
    from heedful.generation.results import Continuation
    from heedful.inference.decoding_arguments import GenerateOptions


def generate(
    model: options.Model,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Prompt; '' starts a new document. Default: lines of standard input."),
    ] = None,
    input_: options.Input = None,
    output: options.Output = None,
    as_json: options.AsJson = False,
    temperature: Annotated[
        float | None, option(SAMPLING, show_default="0.8; 0 with --beam", help="Sampling temperature; 0 = greedy.")
    ] = None,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    seed: options.Seed = 0,
    min_length: options.MinLength = 0,
    max_length: Annotated[int | None, option(SEARCH, show_default="100", help="Maximum length in tokens.")] = None,
    stop: options.Stop = None,
    forbid: options.Forbidden = None,
    beam: Annotated[int | None, option(SEARCH, show_default="1", help="Beam size: search instead of sampling.")] = None,
    length_penalty: options.LengthPenalty = 1.0,
    n_best: options.NBest = 1,
    exact: options.Exact = False,
    engine: options.Engine = "auto",
    int8: options.Int8 = False,
    without: Without = None,
    interventions: InterventionFile = None,
    on_bad_line: options.SkipBad = "fail",
    device: options.Device = "auto",
) -> None:
    """Continue PROMPT, or each line of standard input or a file.

    The continuation of PROMPT is printed while it is generated; of several (--n-best), --- separates one from the next.
    For lines, one line out for each line in: line breaks in a continuation become spaces, and results are separated by
    tabs (--json keeps line breaks; --stop $'\\n' ends at the first).

    Examples:
      heedful generate generate-1 "Once upon a time" --temperature 0.7
      heedful generate generate-1 "Once upon a time" --n-best 3 --max-length 50
    """
    from heedful import Generator
    from heedful.loading import load_as

    if prompt is None and input_ is None and sys.stdin is not None and sys.stdin.isatty():
        prompt = ""
    lines = LineStream(None if prompt is None else [prompt], input_, output, on_bad_line)
    generator = load_as(Generator, model, device=device)
    streamed = prompt is not None and n_best == 1 and (beam or 1) == 1 and not as_json and output is None
    decoding: GenerateOptions = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "repetition_penalty": repetition_penalty, "seed": seed, "min_length": min_length, "max_length": max_length,
        "stop": stop or (), "forbidden": forbid or (), "beam": beam,
        "length_penalty": length_penalty, "n_best": n_best, "exact": exact, "engine": engine, "int8": int8,
        "interventions": read_interventions(generator, without, interventions),
    }  # fmt: skip
    if streamed and prompt is not None:
        pieces = generator.stream(prompt, **decoding)
        for warning in generator.prompt_warnings(prompt):
            print_message(warning)
        print_pieces(prompt, pieces)
        return
    with lines:
        for continuation in generator.iter_generate(lines, skip_blank=prompt is None, **decoding):
            whole = prompt is not None and not as_json
            result = continuation.to_json() if as_json else plain(continuation, whole)
            lines.write(result, continuation.warnings, whole=whole)


def plain(continuation: Continuation, whole: bool) -> str:
    """The prompt with its continuation or continuations: whole texts, or fields of a line separated by tabs."""
    texts = [continuation.prompt + result.text for result in (continuation, *continuation.alternatives)]
    if whole:
        return "\n---\n".join(texts)
    return texts[0] if len(texts) == 1 else "\t".join(text.replace("\t", " ") for text in texts)


def print_pieces(prompt: str, pieces: Iterable[str]) -> None:
    """Print the prompt and each piece of its continuation at once."""

    try:
        write_output(prompt)
        for piece in pieces:
            write_output(piece)
    finally:
        write_output("\n")
