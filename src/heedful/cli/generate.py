"""heedful generate: continue a prompt."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli import decoding_options as options
from heedful.cli.text_io import LineStream, exit_on_closed_pipe, print_note

if TYPE_CHECKING:
    from heedful.generation.results import Continuation
    from heedful.inference.decoding_arguments import GenerateOptions


def generate(
    model: options.Model,
    prompt: Annotated[
        str | None, typer.Argument(help="Prompt; '' starts a new document. Default: lines of standard input.")
    ] = None,
    input_: options.Input = None,
    output: options.Output = None,
    as_json: options.AsJson = False,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; 0 = greedy.  [default: 0.8, or 0 with --beam]")
    ] = None,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    seed: options.Seed = 0,
    min_length: options.MinLength = 0,
    max_length: Annotated[int | None, typer.Option(help="Maximum length in tokens.  [default: 100]")] = None,
    stop: options.Stop = None,
    forbid: options.Forbidden = None,
    beam: Annotated[int | None, typer.Option(help="Beam size: search instead of sampling.  [default: 1]")] = None,
    length_penalty: options.LengthPenalty = 1.0,
    n_best: options.NBest = 1,
    exact: options.Exact = False,
    engine: options.Engine = "auto",
    int8: options.Int8 = False,
    on_bad_line: options.SkipBad = "fail",
    device: options.Device = "auto",
) -> None:
    """Continue PROMPT, printed while it is generated; or continue each line of standard input or a file up to the end
    of the line (with --json, beyond it)."""
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
        "stop": [*(stop or ()), *([] if streamed or as_json else ["\n"])], "forbidden": forbid or (), "beam": beam,
        "length_penalty": length_penalty, "n_best": n_best, "exact": exact, "engine": engine, "int8": int8,
    }  # fmt: skip
    if streamed and prompt is not None:
        pieces = generator.stream(prompt, **decoding)
        for warning in generator.prompt_warnings(prompt):
            print_note(warning)
        print_pieces(prompt, pieces)
        return
    with lines:
        for continuation in generator.iter_generate(lines, skip_blank=prompt is None, **decoding):
            lines.write(continuation.to_json() if as_json else plain(continuation), continuation.warnings)


def plain(continuation: Continuation) -> str:
    """The prompt with its continuation, or tab-separated n-best continuations."""
    texts = [continuation.prompt + each.text for each in (continuation, *continuation.alternatives)]
    return texts[0] if len(texts) == 1 else "\t".join(text.replace("\t", " ") for text in texts)


def print_pieces(prompt: str, pieces: Iterable[str]) -> None:
    """Print the prompt and each piece of its continuation at once."""

    def show(text: str) -> None:
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()

    with exit_on_closed_pipe():
        try:
            show(prompt)
            for piece in pieces:
                show(piece)
        finally:
            show("\n")
