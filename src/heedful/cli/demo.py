"""heedful demo: train, evaluate and inspect a small translator on the built-in corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the model and the plots.")] = Path(
        "heedful-demo"
    ),
    steps: Annotated[int, typer.Option(min=1, help="Number of training steps.")] = 800,
) -> None:
    """Train a small translator of dates in about 90 seconds, test it and plot its attention.

    Examples:
      heedful demo --out dates
    """
    from heedful.errors import UsageError
    from heedful.training.dates_demo import demo as run_demo
    from heedful.training.reporting.events import terminal_listener

    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} exists and is not empty; choose another folder: --out DIR")
    typer.echo("Dates as people write them in 17 languages → ISO 8601. No downloads: the corpus is generated.\n")
    result = run_demo(out, steps=steps, listeners=[terminal_listener()])
    typer.echo("\nUnseen days:")
    for translation in result.translations:
        typer.echo(f"  {translation.source:<36} → {translation.output}    {translation.picture}")
    typer.echo(f"\nThe plots show {result.head}: the attention that aligns best")
    typer.echo(f"(alignment error on unseen days: {result.alignment_error:.1%} of the digits).")
    typer.echo(f"\nModel card:  {out / 'model' / 'card.md'}")
    typer.echo(f"\nSee it think:\n  heedful studio {out / 'model'}")
    typer.echo("\nNow your own text:\n  heedful train translate train.en train.de\n  heedful train generate book.txt")
