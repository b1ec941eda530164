"""Recipe settings as callers write them: `model.width=256`, or a mapping; checked, and merged into a recipe's."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_origin

from heedful.errors import UsageError, nearest
from heedful.syntax import settings_argument
from heedful.training.recipe import SECTIONS, TASKS_USING, Recipe, known_keys

Settings = Mapping[str, Any] | Sequence[str]


def apply_settings(settings: dict[str, Any], changes: Settings) -> dict[str, Any]:
    """Copy the settings with changes: {"model.width": 256}, {"model": {"width": 256}} or ["model.width=256"]."""
    result = dict(settings)
    for path, value in dotted_settings(changes):
        section, dot, key = path.partition(".")
        if section not in (SECTIONS if dot else Recipe.model_fields):
            raise unknown_setting(path)
        result[section] = {**_section(result, section), key: value} if dot else value
    return result


def dotted_settings(changes: Settings) -> Iterator[tuple[str, Any]]:
    """Each setting with its dotted name, such as "model.width", and its value."""
    if not isinstance(changes, Mapping | list | tuple | str):
        example = settings_argument({"model.width": 256})
        raise UsageError(f"settings must be a mapping, as in {example}; got {changes!r:.60}")
    pairs = changes.items() if isinstance(changes, Mapping) else map(parse_setting, _as_list(changes))
    for path, value in pairs:
        if path in SECTIONS and isinstance(value, Mapping):
            yield from ((f"{path}.{key}", _plain(item)) for key, item in value.items())
        else:
            yield str(path), _plain(value)


def parse_setting(text: object) -> tuple[str, Any]:
    """Parse "model.width=256": the value is TOML or else a bare string; a list may also be written a,b."""
    path, equals, written = text.partition("=") if isinstance(text, str) else ("", "", "")
    if not equals:
        raise UsageError(f"a setting is written section.key=value, got {text!r:.60}")
    path = path.strip()
    value = _toml_value(written)
    if not takes_list(path) or isinstance(value, list):
        return path, value
    return path, [_toml_value(part.strip()) for part in written.split(",")] if written.strip() else []


def takes_list(path: str) -> bool:
    """Whether the value of this setting is a list."""
    section, _, key = path.partition(".")
    fields = [kind.model_fields[key] for kind in SECTIONS.get(section, ()) if key in kind.model_fields]
    return any(get_origin(field.annotation) is tuple for field in fields)


def check_keys(settings: dict[str, Any]) -> None:
    """Refuse unknown keys before anything is read or run."""
    for name, value in settings.items():
        if name not in Recipe.model_fields:
            raise unknown_setting(name)
        if name in SECTIONS:
            _section(settings, name)
        for key in value if isinstance(value, dict) else ():
            if key not in known_keys((name,)):
                raise unknown_setting(f"{name}.{key}")


def settings_without_effect(changes: Settings, task: str) -> list[str]:
    """A note for each setting that only other tasks use."""
    paths = dict.fromkeys(path for path, _ in dotted_settings(changes))
    return [
        f"{path} has no effect on {task}: it is for {' and '.join(tasks)}"
        for path in paths
        if task not in (tasks := TASKS_USING.get(path, (task,)))
    ]


def unknown_setting(path: str) -> UsageError:
    """The error for an unknown setting: suggests the setting of that name in another section, or else the closest."""
    section, _, key = path.rpartition(".")
    names = [f"{name}.{setting}" for name in SECTIONS for setting in known_keys((name,))]
    keys = [name.partition(".")[2] for name in names]
    if same := [name for name, name_of_key in zip(names, keys, strict=True) if name_of_key == key]:
        hint = f"did you mean {' or '.join(map(repr, same))}?"
    elif section in SECTIONS:
        hint = nearest(key, known_keys((section,))).replace("did you mean '", f"did you mean '{section}.")
    elif section:
        hint = nearest(section, SECTIONS)
    elif close := get_close_matches(key, keys, n=1):
        hint = f"did you mean '{names[keys.index(close[0])]}'?"
    else:
        hint = nearest(key, Recipe.model_fields)
    return UsageError(f"unknown setting '{path}'; {hint}")


def merge_settings(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Copy the settings with `changes`, merged section by section."""
    return settings | {
        name: {**settings.get(name, {}), **value} if isinstance(value, dict) else value
        for name, value in changes.items()
    }


def _section(settings: dict[str, Any], name: str) -> dict[str, Any]:
    section = settings.get(name, {})
    if not isinstance(section, dict):
        raise UsageError(f"{name} is a section of settings, not {section!r}; write {name}.key=value")
    return section


def _as_list(changes: Sequence[str]) -> Sequence[str]:
    return [changes] if isinstance(changes, str) else changes


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _plain(value: Any) -> Any:
    """A value as TOML has it: paths are strings, tuples are lists."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value
