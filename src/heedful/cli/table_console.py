"""The console that prints tables; imports rich."""

from __future__ import annotations

from rich.console import Console

from heedful.cli.standard_streams import BROKEN_PIPE, discard_output


class TableConsole(Console):
    """A console that ends as every command does when its reader stops reading; rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        discard_output()
        raise SystemExit(BROKEN_PIPE) from None
