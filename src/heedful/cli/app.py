"""The command `heedful`: one file a command, each a thin door to a public function."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from heedful.errors import HeedfulError

app = typer.Typer(
    name="heedful",
    help="Your text in, your transformer out: trained, fast, served, and open to view.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
) -> None:
    """Your text in, your transformer out: trained, fast, served, and open to view."""


def main() -> None:
    """Run the command; an error a user can cause is one line and an exit code."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:  # Ctrl-C amid imports would be tracebacks of other people's code
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from heedful.cli import commands  # noqa: F401  (registers every command)
    from heedful.cli.argv import resumed, spread

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    debug = "--debug" in sys.argv
    try:
        app(resumed(spread(sys.argv[1:])))
    except HeedfulError as error:
        if debug:
            raise
        print(f"heedful: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except OSError as error:  # no right to read or write, a disk or link that is gone
        if debug or error.errno is None:
            raise
        print(f"heedful: {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        if debug:
            raise
        raise SystemExit(130) from None
