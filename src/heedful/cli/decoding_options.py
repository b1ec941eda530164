"""The options that commands about answering share. What is not given stays None: `Decoding` knows the defaults."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from heedful.errors import UsageError

if TYPE_CHECKING:
    from heedful.inference.trained import TrainedModel

Input = Annotated[Path | None, typer.Option("--input", help="Read lines from this file: plain, .gz or .xz.")]
Output = Annotated[Path | None, typer.Option("--output", help="Write lines to this file: plain, .gz or .xz.")]
SkipBad = Annotated[
    Literal["fail", "skip"], typer.Option(help="Stop at a line that cannot be read, or leave it empty.")
]
Beam = Annotated[int | None, typer.Option(help="Texts kept in mind while searching; 1: greedy.")]
LengthPenalty = Annotated[float | None, typer.Option(help="0 favours short texts, 1 is neutral. Default: 1.")]
NBest = Annotated[int | None, typer.Option(help="Answers to each text, side by side between tabs. Default: 1.")]
Temperature = Annotated[float | None, typer.Option(help="Above 0: draw words by chance, the more freely the higher.")]
TopK = Annotated[int | None, typer.Option(help="Draw from the k likeliest words only.")]
TopP = Annotated[float | None, typer.Option(help="Draw from the fewest words that hold this probability.")]
MinP = Annotated[float | None, typer.Option(help="Draw from words at least this share as likely as the likeliest.")]
RepetitionPenalty = Annotated[float | None, typer.Option(help="Above 1: words that occurred are worth less.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same text. Default: 0.")]
MinLength = Annotated[int | None, typer.Option(help="Tokens before a text may end.")]
MaxLength = Annotated[int | None, typer.Option(help="Tokens at most.")]
Stop = Annotated[list[str] | None, typer.Option(help="End before this text; repeat it for more.")]
Forbidden = Annotated[list[str] | None, typer.Option("--forbid", help="Never write this text; repeat it for more.")]
Exact = Annotated[bool, typer.Option("--exact", help="Every bit the same in any company; slower.")]
Engine = Annotated[
    Literal["auto", "torch", "ctranslate2"],
    typer.Option(help="auto: ctranslate2 where it is there, can serve this and is the faster; else torch."),
]
Int8 = Annotated[bool, typer.Option("--int8", help="Weights in eight bits: faster on a CPU, nearly the same texts.")]


def given(arguments: dict[str, Any]) -> dict[str, Any]:
    """What was said on the command line, as `Decoding` takes it."""
    if arguments["input_"] is not None and (arguments.get("text") or arguments.get("prompt")):
        raise UsageError(
            f"texts come from the command line or from --input {arguments['input_']}: give one or the other"
        )
    searching = {"beam", "length_penalty", "n_best", "min_length", "max_length", "repetition_penalty", "prefix"}
    chance = {"temperature", "top_k", "top_p", "min_p", "seed"}
    said = {name: value for name, value in arguments.items() if name in searching | chance and value is not None}
    texts = {"stop": tuple(arguments["stop"] or ()), "forbidden": tuple(arguments["forbid"] or ())}
    return said | texts | {name: arguments[name] for name in ("exact", "engine", "int8")}


def ready(model: Path, task: str, device: str) -> TrainedModel:
    """The model, if it is there and made for this."""
    from heedful.device import select_device
    from heedful.interop.conversion import load

    trained = load(model, device=select_device(device))
    trained.check(task)
    return trained
