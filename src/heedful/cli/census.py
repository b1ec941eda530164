"""heedful census: measure what each part of a model contributes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from heedful.cli.decoding_options import AsJson, Device, Model, SkipBad, option
from heedful.cli.standard_streams import print_message
from heedful.errors import UsageError

TABLE_ROWS = 45
PRUNING = "Pruning"


def census(
    model: Model,
    files: Annotated[list[Path], typer.Argument(metavar="DATA", help="Validation text, as for training.")],
    to: Annotated[
        Literal["zero", "mean", "both"], typer.Option(help="Put in a part's place: zeros, its mean value, or both.")
    ] = "both",
    limit: Annotated[int, typer.Option(min=2, help="Maximum number of texts, evenly spaced.")] = 500,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture (.png .svg .pdf), a page (.html) or .json.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B", show_default="those of the training, or usual names", help="Columns of a table."),
    ] = None,
    save_means: Annotated[
        bool, typer.Option("--save-means", help="Store the mean values in MODEL, for Ablate(…, to='mean').")
    ] = False,
    translations: Annotated[
        int, typer.Option(min=0, metavar="N", help="Translators: also BLEU and chrF of N texts, without each part.")
    ] = 0,
    prune: Annotated[
        int | None, option(PRUNING, min=1, metavar="K", help="Write a smaller model without the K least heads.")
    ] = None,
    prune_until: Annotated[
        str | None,
        option(PRUNING, metavar="PERCENT", help="As many heads as raise the loss by at most this share, e.g. 1%."),
    ] = None,
    prune_part: Annotated[
        list[str] | None,
        option(PRUNING, metavar="PART", help="Remove this head, attention or feed-forward net; may be repeated."),
    ] = None,
    out_model: Annotated[
        Path | None, option(PRUNING, metavar="FOLDER", help="Folder of the smaller model, which must be new.")
    ] = None,
    on_bad_line: SkipBad = "fail",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Switch every part of MODEL off in turn on DATA: what is lost, and what each head attends to.

    Examples:
      heedful census translate-1 valid.en valid.de
      heedful census translate-1 valid.en valid.de --to zero --out census.html
      heedful census translate-1 valid.en valid.de --prune-until 1% --out-model translate-1-small

    Parts: attention heads, attentions, feed-forward networks, skip-connections, positions; gates of recurrent models.
    Each has its change in loss with a 95% interval and its change in accuracy. What a head attends to is measured by
    rules: previous token, same position, delimiter, alignment … An interrupted census continues where it stopped.

    Pruning removes heads from the weights, with their mean values kept in the biases, and prints the scores and the
    speed of both models; every attention keeps at least one head.
    """
    from heedful.inspection.census.census_table import census_table
    from heedful.inspection.result_file import check_result_file
    from heedful.training.census_files import census as take

    if out is not None:
        check_result_file(out)
    options: dict[str, Any] = {
        "limit": limit, "columns": columns or (), "on_bad_line": on_bad_line, "device": device, "show_progress": True,
    }  # fmt: skip
    if prune is None and prune_until is None and not prune_part:
        if out_model is not None:
            raise UsageError("--out-model is where --prune, --prune-until or --prune-part writes; add one of them")
        options |= {"to": ("zero", "mean") if to == "both" else to, "translations": translations}
        with resumable():
            result = take(model, *files, save_means=save_means, **options)
        content, text = result.to_json(), census_table(result, rows=TABLE_ROWS)
    else:
        from heedful.training.model_pruning import prune as prune_model

        if out_model is None:
            raise UsageError("name the folder of the smaller model: --out-model FOLDER")
        until = None if prune_until is None else _share(prune_until)
        with resumable():
            report = prune_model(
                model, *files, heads=prune, until=until, parts=prune_part or (), out=out_model, **options
            )
        result, content, text = report.census, report.to_json(), str(report)
    if out is not None:
        result.save(out)
    typer.echo(json.dumps(content, ensure_ascii=False) if as_json else text)


@contextmanager
def resumable() -> Iterator[None]:
    """On Ctrl-C, print that the same command continues the census."""
    try:
        yield
    except KeyboardInterrupt:
        print_message("interrupted; the same command goes on from here")
        raise


def _share(percent: str) -> float:
    """The share that a percentage such as "1%" or "0.5" names."""
    try:
        return float(percent.strip().removesuffix("%")) / 100
    except ValueError:
        raise UsageError(f"--prune-until takes a percentage of the loss such as 1%, got '{percent}'") from None
