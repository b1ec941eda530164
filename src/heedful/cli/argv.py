"""Reading what people type on a command line."""

from __future__ import annotations

import re

from heedful.errors import UsageError
from heedful.training.tasks import TASKS

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration_in_seconds(text: str) -> float:
    """ "90s", "10m", "1h30m", or plain seconds."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        total = sum(float(number) * SECONDS[unit] for number, unit in parts)
    elif re.fullmatch(r"\d+(\.\d+)?", text):
        total = float(text)
    else:
        raise UsageError(f"'{text}' is no duration; write it as 90s, 10m or 1h30m")
    if total <= 0:
        raise UsageError(f"a duration must be positive, got '{text}'")
    return total


TABLES = (".tsv", ".csv", ".jsonl")


def spread(arguments: list[str]) -> list[str]:
    """`--valid dev.en dev.de` as `--valid dev.en --valid dev.de`: a pair of files is one thing to a person.

    Only where pairs are meant: not for running text, nor for a table, which holds both sides.
    """
    if any(word in TASKS and not TASKS[word].paired for word in arguments[:2]):
        return arguments
    result: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        result.append(word)
        if word in ("--valid", "--test", "--against") and len(rest) > 1:
            result.append(rest.pop(0))
            if not any(kind in result[-1] for kind in TABLES) and not rest[0].startswith("-"):
                result += [word, rest.pop(0)]
    return result


def resumed(arguments: list[str]) -> list[str]:
    """`--out run --resume` as `--resume run`: the folder need not be said twice."""
    if "--resume" not in arguments or "--out" not in arguments[:-1]:
        return arguments
    place = arguments.index("--out")
    folder, rest = arguments[place + 1], arguments[:place] + arguments[place + 2 :]
    at = rest.index("--resume") + 1
    named = at < len(rest) and not rest[at].startswith("-")
    if named and rest[at] != folder:
        raise UsageError(f"--resume {rest[at]} and --out {folder} are two folders; a run has one")
    return rest if named else [*rest[:at], folder, *rest[at:]]
