"""`python -m heedful.cli`: the `heedful` command, for torchrun."""

from __future__ import annotations

from heedful.cli.app import main

main()
