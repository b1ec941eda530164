"""The `heedful` command line: one module per command, each a thin layer over a public function."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from heedful import __version__
from heedful.cli.standard_streams import flush_output, prepare_streams, print_message
from heedful.errors import HeedfulError
from heedful.syntax import command_line

app = typer.Typer(
    name="heedful",
    help="Train, use and inspect transformer models on your own text.",
    epilog="New here? `heedful demo` trains a small translator in about 90 seconds; `heedful train` says what to type.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


def print_version(requested: bool) -> bool:
    if requested:
        typer.echo(f"heedful {__version__}")
        raise typer.Exit
    return requested


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Train, use and inspect transformer models on your own text."""


def main() -> None:
    """Run a command; a HeedfulError is printed as one line and becomes the exit code."""
    prepare_streams()
    default_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if default_handler:  # Ctrl-C during imports would print a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from heedful.cli import commands  # noqa: F401  (registers every command)

    if default_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    debug = "--debug" in sys.argv
    try:
        with command_line():
            run_command()
    except HeedfulError as error:
        if debug:
            raise
        print_message(error)
        raise SystemExit(error.exit_code) from None
    except OSError as error:  # no permission, a broken disk or link
        if debug or error.errno is None:
            raise
        print_message(f"{error.filename or 'standard output or a file'}: {error.strerror}")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        if debug:
            raise
        raise SystemExit(130) from None


def run_command() -> None:
    """Run the command; raise HeedfulError if its output cannot be written to standard output."""
    try:
        app()
    except (SystemExit, OSError):
        flush_output()
        raise
