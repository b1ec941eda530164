"""python -m heedful.cli: the command, for those who start it by Python, as torchrun does."""

from __future__ import annotations

from heedful.cli.app import main

main()
