"""Settings as frozen, checked values: the base of every configuration in the project."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from heedful.errors import CheckpointError, UsageError, nearest


class Config(BaseModel):
    """The base of every configuration: a misspelt key or impossible value is one clear line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, /, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise UsageError(validation_message(error, lambda _: type(self).model_fields)) from None

    @classmethod
    def read_json(cls, file: Path) -> Any:
        """What a file of a model folder says; None if it is not there."""
        try:
            return cls.model_validate_json(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file} is damaged: {error}".replace("\n", " ")) from None

    def with_changes(self, **changes: Any) -> Any:
        """A checked copy with some settings replaced."""
        return type(self)(**{**self.model_dump(exclude_unset=True), **changes})


def validation_message(error: ValidationError, known: Callable[[tuple[str, ...]], Iterable[str]]) -> str:
    """pydantic's report in our form: what, which value, what to do. `known` gives the keys valid at a path."""
    lines = []
    for problem in error.errors():
        path = tuple(str(part) for part in problem["loc"])
        name = ".".join(path)
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown setting '{name}'; {nearest(path[-1], known(path[:-1]))}")
        elif problem["type"] == "missing":
            lines.append(f"setting '{name}' is missing")
        elif problem["type"] == "value_error":
            lines.append(f"{name}: {problem['ctx']['error']}" if name else str(problem["ctx"]["error"]))
        else:
            lines.append(f"{name}: {problem['msg'].lower()}, got {problem['input']!r}")
    return "; ".join(lines)
