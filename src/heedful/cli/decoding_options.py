"""Options shared by the commands that use a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

INPUT_OUTPUT, SEARCH, SAMPLING, SCORES, MACHINE = "Input and output", "Search", "Sampling", "Scores", "Machine"
"""Groups of options in the help text."""


def option(group: str, *names: str, **details: Any) -> Any:
    """An option listed in this group of the help text."""
    return typer.Option(*names, rich_help_panel=group, **details)


Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder.")]
Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts; default: lines of standard input.")]
Input = Annotated[
    Path | None,
    option(INPUT_OUTPUT, "--input", metavar="FILE", help="Read lines from this file: plain, .gz or .xz."),
]
Output = Annotated[
    Path | None,
    option(INPUT_OUTPUT, "--output", metavar="FILE", help="Write lines to this file: plain, .gz or .xz."),
]
SkipBad = Annotated[Literal["fail", "skip"], option(INPUT_OUTPUT, help="Unreadable lines: stop, or leave them empty.")]
AsJson = Annotated[bool, option(INPUT_OUTPUT, "--json", help="Print JSON: one object a line.")]
Device = Annotated[str, option(MACHINE, help="auto, cpu, cuda or mps.")]
LengthPenalty = Annotated[
    float,
    option(SEARCH, min=0.0, max=100.0, help="Length penalty α of beam search: 0 favors short texts, 1 is neutral."),
]
BleuTokenizer = Annotated[
    str | None,
    option(
        SCORES,
        metavar="NAME",
        show_default="auto",
        help="sacreBLEU's tokenizer; auto: by the script (13a, ja-mecab, ko-mecab, zh, char).",
    ),
]
ResultFile = Annotated[
    Path | None,
    option(INPUT_OUTPUT, metavar="FILE", help="Write a page (.html), a picture (.png, .svg, .pdf) or .json."),
]
OneText = Annotated[str | None, typer.Argument(metavar="TEXT", help="Text; default: lines of standard input.")]
NBest = Annotated[int, option(SEARCH, help="Results per text, separated by tabs.")]
TopK = Annotated[int, option(SAMPLING, help="Sample from the k most probable tokens; 0 = all.")]
TopP = Annotated[float, option(SAMPLING, help="Nucleus sampling: sample from the smallest set with this probability.")]
MinP = Annotated[float, option(SAMPLING, help="Sample from tokens at least this fraction as probable as the best.")]
RepetitionPenalty = Annotated[float, option(SEARCH, help="Above 1: make repeated tokens less probable.")]
Seed = Annotated[int, option(SAMPLING, help="Random seed of sampling.")]
MinLength = Annotated[int, option(SEARCH, help="Minimum length in tokens.")]
Stop = Annotated[list[str] | None, option(SEARCH, metavar="TEXT", help="Stop before this text; may be repeated.")]
Forbidden = Annotated[
    list[str] | None,
    option(SEARCH, "--forbid", metavar="TEXT", help="Never generate this text; may be repeated."),
]
Exact = Annotated[bool, option(MACHINE, "--exact", help="Bitwise identical results whatever the batch; slower.")]
Engine = Annotated[
    Literal["auto", "torch", "ctranslate2"],
    option(MACHINE, help="auto: ctranslate2 where it is installed, supports the options and is faster; else torch."),
]
Int8 = Annotated[
    bool, option(MACHINE, "--int8", help="8-bit weights (ctranslate2): faster on a CPU, nearly equal results.")
]
