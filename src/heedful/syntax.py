"""Format arguments, settings and calls for messages: as Python, or as typed on the command line."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

OPTION_NAMES = {"architecture": "model", "start_from": "from", "forbidden": "forbid"}
"""Arguments whose command-line option has another name."""

_in_command_line = False  # per process, not per thread: a process either runs a command or a Python program


@contextmanager
def command_line() -> Iterator[None]:
    """Within the block, messages show arguments and calls as typed on the command line."""
    global _in_command_line
    before, _in_command_line = _in_command_line, True
    try:
        yield
    finally:
        _in_command_line = before


def by_interface(python: str, command: str) -> str:
    """Choose the wording for the interface in use, Python or the command line."""
    return command if _in_command_line else python


def argument(name: str, value: object = None) -> str:
    """An argument: `beam=4`, or `--beam 4`; without a value (None), its name."""
    if not _in_command_line:
        return name if value is None else f"{name}={_literal(value)}"
    option = f"--{OPTION_NAMES.get(name, name).replace('_', '-')}"
    if isinstance(value, bool):
        return option if value else option.replace("--", "--no-", 1)
    values = value if isinstance(value, list | tuple) else [value]
    return option if value is None else " ".join(f"{option} {shlex.quote(str(item))}" for item in values)


def settings_argument(settings: Mapping[str, object]) -> str:
    """Recipe settings as an argument: `settings={"model.width": 64}`, or `--set model.width=64`."""
    if not _in_command_line:
        pairs = ", ".join(f"{_literal(key)}: {_literal(value)}" for key, value in settings.items())
        return f"settings={{{pairs}}}"
    return " ".join(f"--set {shlex.quote(f'{key}={_bare(value)}')}" for key, value in settings.items())


def call(function: str, *values: object, **arguments: object) -> str:
    """A call: `heedful.train(resume="run")`, or `heedful train --resume run`."""
    named = [argument(name, value) for name, value in arguments.items()]
    if not _in_command_line:
        return f"heedful.{function}({', '.join([*map(_literal, values), *named])})"
    return " ".join(["heedful", function, *(shlex.quote(str(value)) for value in values), *named])


def _literal(value: object) -> str:
    """A Python literal, with double quotes; a path is written as a string."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, str | os.PathLike):
        text = repr(os.fspath(value))
        return f'"{text[1:-1]}"' if text[0] == "'" and '"' not in text else text
    return repr(value)


def _bare(value: object) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, list | tuple):
        return ",".join(map(_bare, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
