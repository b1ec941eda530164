"""heedful demo: the whole way, on the built-in corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Where the model and its pictures go.")] = Path("heedful-demo"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 800,
) -> None:
    """Train a small translator of dates on this machine in about 90 seconds, test it, and draw what it looks at."""
    from heedful.errors import UsageError
    from heedful.training.dates_demo import demo as run
    from heedful.training.reporting.events import terminal_listener

    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} exists and is not empty; choose another --out")
    typer.echo("Dates as people write them in 17 languages → ISO 8601. No downloads: the corpus is generated.\n")
    _, found = run(out, steps=steps, listeners=[terminal_listener()])
    typer.echo("\nOn days it has never seen:")
    for shown in found["shown"]:
        typer.echo(f"  {shown.source:<36} → {shown.output}    {shown.picture}")
    typer.echo(f"\nThe pictures show {found['head']}: of all heads the one that aligns best")
    typer.echo(f"({found['wrong']:.1%} of the digits it links to a wrong part of the date, on days never seen).")
    typer.echo(f"\nThe report:  {out / 'model' / 'card.md'}")
    typer.echo("\nNow your own text:\n  heedful train translate train.en train.de\n  heedful train generate book.txt")
