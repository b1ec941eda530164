"""heedful look: what a model computed for a text, as text, picture, page or JSON."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.cli import decoding_options as options
from heedful.cli.intervention_options import INSIDE, InterventionFile, Without, read_interventions
from heedful.cli.standard_streams import print_message, write_output
from heedful.cli.text_io import LineStream
from heedful.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from heedful.inspection.look_result import Look

option = options.option
HEADINGS = {
    "attention": "attention (with its heads)",
    "cross-attention": "cross-attention (with its heads)",
    "feed-forward": "feed-forward networks",
    "skip": "skip-connections",
    "positions": "positions",
    "tap": "values that can be recorded or replaced",
}


def look(
    model: options.Model,
    text: options.OneText = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Translation, continuation, label or answer to look at; default: its own."),
    ] = None,
    out: options.ResultFile = None,
    as_json: options.AsJson = False,
    lens: Annotated[bool, option(INSIDE, "--lens", help="Also what each layer would have answered.")] = False,
    part: Annotated[
        str | None,
        option(INSIDE, metavar="PART", help="Attention to show, e.g. decoder.1.cross; default: the aligned."),
    ] = None,
    head: Annotated[int | None, option(INSIDE, metavar="N", help="One head of --part; default: the mean.")] = None,
    top: Annotated[int, option(INSIDE, metavar="K", help="Most probable labels at each output.")] = 5,
    list_: Annotated[bool, option(INSIDE, "--list", help="List all parts of the model by kind, and stop.")] = False,
    without: Without = None,
    interventions: InterventionFile = None,
    device: options.Device = "auto",
) -> None:
    """Look inside at TEXT: attention of every layer and head, probabilities, alignment and what each layer would say.

    Without --out: the answer and the alignment as shaded text. The page (.html) is one file that works offline.

    Examples:
      heedful look translate-1 "A man rides a bicycle."
      heedful look translate-1 "A man rides a bicycle." --out look.html --lens
      heedful look translate-1 "A man rides." --part decoder.1.cross --head 3 --without decoder.0.cross
      heedful look translate-1 --list
    """
    import heedful
    from heedful.inspection.result_file import check_result_file

    if out is not None:
        check_result_file(out)
    trained = heedful.load(model, device=device)
    if list_:
        write_parts(trained.model, as_json)
        return
    lines = LineStream(None if text is None else [text], None, None)
    if out is not None and text is None:
        raise UsageError("--out takes one look: give the text on the command line")
    changes = read_interventions(trained, without, interventions)
    with lines:
        for line in lines:
            if line is None:
                continue
            result = trained.look(line, target, top=top, lens=lens, interventions=changes)
            if out is not None:
                result.save(out, part=part, head=head)
                print_message(f"{out} written")
            if as_json:
                lines.write(result.to_json("list"))
            elif out is None:
                write_text(result, part, head, lines)
    if out is None and not as_json and text is not None:
        print_message(next_command(model, text, result))


def write_text(result: Look, part: str | None, head: int | None, lines: LineStream) -> None:
    """The look as shaded text, as wide as the terminal."""
    from heedful.inspection.attention_table import attention_table
    from heedful.inspection.look_text import look_lines

    if lines.results:
        lines.write("")
    for line in look_lines(result, attention_table(result, part, head), shutil.get_terminal_size((100, 24)).columns):
        lines.write(line)


def next_command(model: Path, text: str, result: Look) -> str:
    """The next command: the page, or the same text with a part switched off."""
    part = result.alignment.part if result.alignment else next(reversed(result.attention), None)
    command = f"heedful look {shlex.quote(str(model))} {shlex.quote(text)}"
    off = "" if part is None else f"; or switch a part off: --without {part}"
    return f"next: {command} --out look.html{off}"


def write_parts(model: nn.Module, as_json: bool) -> None:
    """All parts of a model by kind: what --without, --part and interventions may name."""
    from heedful.interventions.parts import model_parts

    kinds: dict[str, list[dict[str, Any]]] = {}
    for part in model_parts(model).values():
        if part.head is None:
            entry = {"name": part.name} | ({"heads": part.heads} if part.heads else {})
            kinds.setdefault(part.kind, []).append(entry)
    if as_json:
        write_output(json.dumps(kinds) + "\n")
        return
    for kind, parts in kinds.items():
        write_output(f"{HEADINGS[kind]}\n" + "".join(f"  {part['name']}{_heads(part)}\n" for part in parts))


def _heads(part: dict[str, Any]) -> str:
    heads = part.get("heads", 0)
    return f"   .head.0 to .head.{heads - 1}" if heads > 1 else "   .head.0" if heads else ""
