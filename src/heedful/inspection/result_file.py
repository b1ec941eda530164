"""Write a result to a file: a page that works offline, a picture, or all values as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from heedful.errors import HeedfulError, UsageError
from heedful.files import atomic_file

PICTURES = (".png", ".svg", ".pdf")
SUFFIXES = (".html", *PICTURES, ".json")


def write_result(
    file: str | Path, *, page: Callable[[], str], draw: Callable[[Path, str], object], values: Callable[[], object]
) -> Path:
    """Write the `page`, a picture by `draw` (in a format such as "svg"), or the `values`, chosen by the suffix."""
    path = Path(file)
    suffix = check_result_file(path)
    try:
        with atomic_file(path) as temporary:
            if suffix in PICTURES:
                draw(temporary, suffix.removeprefix("."))
            else:
                content = page() if suffix == ".html" else json.dumps(values(), ensure_ascii=False) + "\n"
                temporary.write_text(content, encoding="utf-8")
    except OSError as error:
        raise HeedfulError(f"{path} cannot be written: {error.strerror or error}") from None
    return path


def check_result_file(path: Path) -> str:
    """The lower-case suffix of a file that a result can be written to; UsageError for any other file.

    Call it before a long measurement, so that the result is not lost.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"{path}: unknown kind of file '{path.suffix}'; use one of {', '.join(SUFFIXES)}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}")
    return suffix
