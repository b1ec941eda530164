"""Base class of every configuration: frozen, validated, with one-line errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from heedful.errors import CheckpointError, UsageError, nearest
from heedful.untrusted_files import parse_json_object


class Config(BaseModel):
    """A frozen pydantic model; an unknown key or invalid value raises `UsageError` with the nearest valid key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    lines = []
    for problem in error.errors():
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
        else:
            lines.append(f"{name}: {problem['msg'].lower()}, got {problem['input']!r:.80}")
    return "; ".join(lines)
