"""Strict JSON of requests: UTF-8, each key once, finite numbers, limited depth and number of values."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from heedful.errors import is_unicode

STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Also one that never ends: else each quote in it would be read from to the end of the body."""
TOO_MANY_VALUES = "the JSON has more than {:,} values"


class MalformedBodyError(ValueError):
    """A body that does not fit its content type; the message does not repeat it."""


def parse_strict(body: bytes, max_depth: int, max_values: int) -> Any:
    """Parse a JSON body; MalformedBodyError for anything ambiguous."""
    _check_brackets(body, max_values)
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_once,
            parse_constant=_finite_number,
            parse_float=_finite_number,
        )
    except UnicodeDecodeError:
        raise MalformedBodyError("the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise MalformedBodyError(f"the body is not valid JSON (at character {error.pos:,})") from None
    except RecursionError:
        raise MalformedBodyError(f"the JSON is nested more than {max_depth} levels deep") from None
    except ValueError as error:  # of the hooks, and an integer of thousands of digits
        raise MalformedBodyError(
            str(error) if isinstance(error, MalformedBodyError) else "a number is too long"
        ) from None
    check_sizes(value, max_depth, max_values)
    if b"\\u" in body and not all(map(is_unicode, strings_in(value))):
        raise MalformedBodyError("a string of the JSON has half of a character")
    return value


def _check_brackets(body: bytes, max_values: int) -> None:
    """Refuse hundreds of thousands of lists and objects before any is made, which takes seconds."""
    if body.count(b"[") + body.count(b"{") > max_values:  # texts may have them, too
        structure = STRING.sub(b"", body)
        if structure.count(b"[") + structure.count(b"{") > max_values:
            raise MalformedBodyError(TOO_MANY_VALUES.format(max_values))


def check_sizes(value: Any, max_depth: int, max_values: int) -> None:
    """Refuse JSON that is nested deeper or has more values; the numbers of a `vector` are not counted.

    Each value that does not fit its field costs the time of an error message.
    """
    level, values = [("", value)], 0
    for _ in range(max_depth + 1):
        children: list[tuple[str, Any]] = []
        for name, item in level:
            if isinstance(item, dict):
                children += item.items()
            elif isinstance(item, list) and not (name == "vector" and set(map(type, item)) <= {int, float}):
                children += [("", child) for child in item]
        level, values = children, values + len(children)
        if values > max_values:
            raise MalformedBodyError(TOO_MANY_VALUES.format(max_values))
        if not any(isinstance(item, dict | list) for _, item in level):
            return
    raise MalformedBodyError(f"the JSON is nested more than {max_depth} levels deep")


def strings_in(value: Any) -> list[str]:
    """All strings in a JSON value, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in strings_in(part)]
    return [text for item in value for text in strings_in(item)] if isinstance(value, list) else []


def to_json_bytes(value: Any) -> bytes:
    """JSON in UTF-8; numbers that JSON does not have become null."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_without_nan(value), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise MalformedBodyError("a key of the JSON appears twice")
    return result


def _finite_number(literal: str) -> float:
    number = float(literal) if literal[-1:].isdigit() else math.inf
    if not math.isfinite(number):
        raise MalformedBodyError("a number of the JSON is not finite")
    return number
