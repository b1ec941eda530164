"""`python -m heedful`: the `heedful` command."""

from __future__ import annotations

from heedful.cli.app import main

main()
