"""heedful lab: the open questions of the notes as experiments, and checks of any model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

lab = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder for results; each study has a subfolder of its name.")]


@lab.callback()
def describe() -> None:
    """Run the studies that answer the notes' open questions, and check models.

    Examples:
      heedful lab list
      heedful lab run order --quick
      heedful lab check translate-1
    """


@lab.command("list")
def list_studies(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object on a line.")] = False,
) -> None:
    """List the studies with their questions.

    Examples:
      heedful lab list
    """
    import json

    from heedful.lab.catalog import all_studies

    for name, study in all_studies().items():
        if as_json:
            described = {"name": name, "question": study.question, "concept": study.concept, "factors": study.factors}
            typer.echo(json.dumps(described, ensure_ascii=False))
        else:
            typer.echo(f"{name:<14} {study.question} ({study.concept}; {len(study.variants)} variants)")


@lab.command()
def run(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Studies, `all`, or a Python file with a STUDY.")],
    quick: Annotated[bool, typer.Option("--quick", help="Small models and short training: a minute a study.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, max=1000, show_default="5; quick: 3", help="Seeds.")] = None,
    out: Out = Path("lab"),
    processes: Annotated[int | None, typer.Option(min=1, show_default="one a core", help="Trials at a time.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Run studies and write their reports; an interrupted run continues where it stopped.

    Examples:
      heedful lab run order --quick
      heedful lab run skips --seeds 3 --out experiments
      heedful lab run my_study.py
    """
    from heedful.lab.catalog import all_studies
    from heedful.lab.report import REPORT, answer_sentence
    from heedful.lab.runner import run_study
    from heedful.training.reporting.events import Events, terminal_listener

    for name in list(all_studies()) if names == ["all"] else names:
        start_progress = Events(terminal_listener()).stage
        try:
            results = run_study(
                name, out, quick=quick, seeds=seeds, processes=processes, device=device, start_progress=start_progress
            )
        except KeyboardInterrupt:
            typer.echo(f"heedful: interrupted; the same command continues with the trials in {out}", err=True)
            raise
        study = results.study
        typer.echo(f"{study.name}: {study.question}")
        for prediction in study.predictions:
            typer.echo(f"  {answer_sentence(prediction, prediction.decide(results))}")
        typer.echo(f"  {out / study.name / REPORT}")


@lab.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of results.")] = Path("lab"),
) -> None:
    """Rewrite the reports in DIR from their results, and README.md with the outcome of every study.

    Examples:
      heedful lab report
    """
    from heedful.errors import UsageError
    from heedful.lab.stored_reports import write_reports

    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; run a study first: heedful lab run order --quick")
    typer.echo(write_reports(folder))


@lab.command()
def check(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder, ours or a Hugging Face layout.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object on a line.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Check that order, look-ahead mask, padding, cache, batches and skip-connections of MODEL work; exit 1 if not.

    Examples:
      heedful lab check translate-1
      heedful lab check bert-base-uncased --json
    """
    import json
    from dataclasses import asdict

    from heedful.lab.model_checks import check_model
    from heedful.loading import load

    checks = check_model(load(model, device=device))
    for result in checks:
        if as_json:
            typer.echo(json.dumps(asdict(result)))
        else:
            size = "" if result.difference is None else f" (largest difference {result.difference:.1e})"
            typer.echo(f"{result.name:<17} {result.status:<15} {result.detail}{size}")
    if any(result.status == "failed" for result in checks):
        raise typer.Exit(1)


@lab.command()
def numbers() -> None:
    """Print the worked numbers and the errata of the notes, computed now.

    Examples:
      heedful lab numbers
    """
    from heedful.lab.printed_examples import worked_numbers_page

    typer.echo(worked_numbers_page(), nl=False)
