"""Options shared by the commands that use a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Model = Annotated[Path, typer.Argument(help="Model folder.")]
Texts = Annotated[list[str] | None, typer.Argument(help="Texts; default: lines of standard input.")]
Input = Annotated[Path | None, typer.Option("--input", help="Read lines from this file: plain, .gz or .xz.")]
Output = Annotated[Path | None, typer.Option("--output", help="Write lines to this file: plain, .gz or .xz.")]
SkipBad = Annotated[Literal["fail", "skip"], typer.Option(help="Unreadable lines: stop, or leave them empty.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
LengthPenalty = Annotated[
    float, typer.Option(help="Length penalty α of beam search: 0 favors short texts, 1 is neutral.")
]
BleuTokenizer = Annotated[
    str,
    typer.Option(help="Translation: sacreBLEU's tokenizer; auto: by the script (13a, ja-mecab, ko-mecab, zh, char)."),
]
NBest = Annotated[int, typer.Option(help="Results per text, separated by tabs.")]
TopK = Annotated[int, typer.Option(help="Sample from the k most probable tokens; 0 = all.")]
TopP = Annotated[float, typer.Option(help="Nucleus sampling: sample from the smallest set with this probability.")]
MinP = Annotated[float, typer.Option(help="Sample from tokens at least this fraction as probable as the best.")]
RepetitionPenalty = Annotated[float, typer.Option(help="Above 1: make repeated tokens less probable.")]
Seed = Annotated[int, typer.Option(help="Random seed of sampling.")]
MinLength = Annotated[int, typer.Option(help="Minimum length in tokens.")]
Stop = Annotated[list[str] | None, typer.Option(help="Stop before this text; may be repeated.")]
Forbidden = Annotated[list[str] | None, typer.Option("--forbid", help="Never generate this text; may be repeated.")]
Exact = Annotated[bool, typer.Option("--exact", help="Bitwise identical results whatever the batch; slower.")]
Engine = Annotated[
    Literal["auto", "torch", "ctranslate2"],
    typer.Option(help="auto: ctranslate2 where it is installed, supports the options and is faster; else torch."),
]
Int8 = Annotated[
    bool, typer.Option("--int8", help="8-bit weights (ctranslate2): faster on a CPU, nearly equal results.")
]
