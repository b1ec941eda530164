"""Base class of every configuration: frozen, validated, with one-line errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from heedful.errors import CheckpointError, UsageError, nearest
from heedful.untrusted_files import parse_json_object

MAX_PROBLEMS = 5
"""Problems listed in one message."""


class Config(BaseModel):
    """A frozen pydantic model; an unknown key or invalid value raises `UsageError` with the nearest valid key."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, /, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise UsageError(validation_message(error, lambda _: type(self).model_fields)) from None

    @classmethod
    def from_json(cls, content: bytes, file: Path) -> Self:
        """The configuration in the content of a JSON file."""
        parse_json_object(content, file)
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            problem = validation_message(error, lambda _: cls.model_fields)
            raise CheckpointError(f"{file} is damaged or from another version: {problem}") from None

    def to_file(self) -> str:
        """The content of a JSON file that `from_json` reads."""
        return self.model_dump_json(indent=2) + "\n"

    def with_changes(self, **changes: Any) -> Self:
        """A validated copy with some settings replaced."""
        return type(self)(**{**self.model_dump(exclude_unset=True), **changes})


def validation_message(error: ValidationError, known: Callable[[tuple[str, ...]], Iterable[str]]) -> str:
    """One line for a pydantic error: setting, problem, value seen. `known` returns the valid keys at a path."""
    lines: list[str] = []
    problems = error.errors()
    for problem in problems[:MAX_PROBLEMS]:
        path = tuple(str(part) for part in problem["loc"])
        name = ".".join(path)
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown setting '{name}'; {nearest(path[-1], known(path[:-1]))}")
        elif problem["type"] == "missing":
            lines.append(f"setting '{name}' is missing")
        elif problem["type"] == "json_invalid":
            lines.append(str(problem["msg"]).lower())  # without the input, which is the whole file
        elif problem["type"] == "value_error":
            lines.append(f"{name}: {problem['ctx']['error']}" if name else str(problem["ctx"]["error"]))
        elif problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
            key, tag = problem["ctx"]["discriminator"].strip("'"), problem["ctx"].get("tag")
            seen = f"'{tag}' is not a {key}" if tag else f"'{key}' is missing"
            choices = f"; use one of {problem['ctx']['expected_tags']}".replace("'", "") if tag else ""
            lines.append(f"{name}: {seen}{choices}")
        else:
            seen = f"{problem['msg'].lower()}, got {problem['input']!r:.80}"
            lines.append(f"{name}: {seen}" if name else seen)
    more = [f"and {len(problems) - MAX_PROBLEMS:,} more"] if len(problems) > MAX_PROBLEMS else []
    return "; ".join([*lines, *more])
