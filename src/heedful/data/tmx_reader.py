"""Translation memories (TMX) as a stream: the segments of two languages, unit after unit.

The XML parser is fed blocks of the file and keeps one unit, so memory is bounded. A file that defines entities is
refused: they can expand to gigabytes, and no translation memory needs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from heedful.data.line_reader import MAX_LINE, BadLine, read_blocks
from heedful.data.progress import ProgressCallback
from heedful.errors import DataError
from heedful.quantities import count
from heedful.syntax import argument

SAMPLE_UNITS = 100
"""Number of units from which the two languages are determined."""
CODES = ("bpt", "ept", "it", "ph", "ut")
"""Inline elements that hold codes of another format, not text."""
BLOCK, MAX_TOKEN = 1 << 16, 4 << 20
"""Bytes parsed at a time, and maximum bytes of a tag or comment."""
MAX_DEPTH, MAX_LANGUAGES = 100, 1000
SPACES = re.compile(r"[ \t\r\n]+")


class Unit(NamedTuple):
    """A translation unit: its line and its text by language, in lower case."""

    line: int
    segments: dict[str, str]


class _UnitParser:
    """Collects units from the events of the XML parser."""

    def __init__(self, path: Path) -> None:
        self.path, self.source_language = path, ""
        self.units: list[Unit | BadLine] = []
        self._line, self._language, self._segments = 0, "", dict[str, str]()
        self._text: list[str] | None = None
        self._size = self._depth = self._code_depth = 0
        self.expat = expat.ParserCreate()
        self.expat.buffer_text = True
        self.expat.StartElementHandler, self.expat.EndElementHandler = self._start, self._end
        self.expat.CharacterDataHandler, self.expat.EntityDeclHandler = self._characters, self._refuse_entity

    def feed(self, block: bytes, *, last: bool = False) -> list[Unit | BadLine]:
        """Parse a block; return the units that end in it."""
        try:
            self.expat.Parse(block, last)
        except expat.ExpatError as error:
            raise DataError(
                f"{self.path}:{error.lineno}: not well-formed XML: {expat.ErrorString(error.code)}"
            ) from None
        except (LookupError, ValueError) as error:
            raise DataError(f"{self.path} cannot be decoded: {error}") from None
        units, self.units = self.units, []
        return units

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(":")[2]  # whatever the prefix of its namespace
        self._depth += 1
        if self._depth > MAX_DEPTH or len(self._segments) > MAX_LANGUAGES:
            raise DataError(f"{self.path}:{self.expat.CurrentLineNumber}: not a translation memory: nested too deeply")
        if name == "header":
            self.source_language = attributes.get("srclang", "").casefold()
        elif name == "tu":
            self._line, self._segments = self.expat.CurrentLineNumber, {}
        elif name == "tuv":
            self._language = (attributes.get("xml:lang") or attributes.get("lang") or "").casefold()
        elif name == "seg":
            self._text, self._size, self._code_depth = [], 0, 0
        elif self._text is not None and (name in CODES or self._code_depth):
            self._code_depth += 1

    def _end(self, name: str) -> None:
        name = name.rpartition(":")[2]
        self._depth -= 1
        if name == "tu":
            oversized = any(len(text) > MAX_LINE for text in self._segments.values())
            message = f"a segment is longer than {MAX_LINE:,} characters"
            bad = BadLine("overlong", self.path, self._line, message)
            self.units.append(bad if oversized else Unit(self._line, self._segments))
        elif name == "seg" and self._text is not None:
            self._segments[self._language] = SPACES.sub(" ", "".join(self._text)).strip()
            self._text = None
        elif self._code_depth:
            self._code_depth -= 1

    def _characters(self, text: str) -> None:
        if self._text is not None and not self._code_depth and self._size <= MAX_LINE:
            self._text.append(text)
            self._size += len(text)

    def _refuse_entity(self, name: str, *_: object) -> None:
        raise DataError(f"{self.path}:{self.expat.CurrentLineNumber}: the file defines an entity ({name:.40}): refused")


def scan_tmx(
    path: Path, languages: Sequence[str] = (), *, progress: ProgressCallback | None = None
) -> Iterator[tuple[int, tuple[str, str]] | BadLine]:
    """Yield the line of each unit and its segments in two languages, "" where it has none."""
    source, target = choose_languages(path, languages)
    for unit in _units(path, _UnitParser(path), progress):
        if isinstance(unit, BadLine):
            yield unit
        else:
            yield unit.line, (_segment(unit, source), _segment(unit, target))


def choose_languages(path: Path, languages: Sequence[str] = ()) -> tuple[str, str]:
    """The languages of source and target: those requested, or the only two, that of `srclang` first."""
    parser = _UnitParser(path)
    known: dict[str, None] = {}
    for number, unit in enumerate(_units(path, parser)):
        known |= dict.fromkeys(unit.segments if isinstance(unit, Unit) else ())
        if number == SAMPLE_UNITS:
            break
    listed = ", ".join(known) or "none"
    if languages:
        if len(languages) != 2:
            raise DataError(f"{path}: a pair has two languages, got {argument('columns', ','.join(languages))}")
        for name in languages:
            if not any(_matches(language, name) for language in known):
                raise DataError(f"{path} has no language {name!r}; languages found: {listed}")
        return languages[0], languages[1]
    if not known:
        raise DataError(
            f"{path} has no units with a language: a translation memory has <tu>, <tuv xml:lang=…> and <seg>"
        )
    if len(known) != 2 and len(primaries := {name.partition("-")[0]: None for name in known}) == 2:
        known = primaries  # en-US and en-GB beside de
    if len(known) != 2:
        raise DataError(
            f"{path} has {count(len(known), 'language')} ({listed}): name source and target, as "
            f"{argument('columns', 'en,de')}"
        )
    first, second = known
    primary = parser.source_language.partition("-")[0]
    return (second, first) if _matches(second, primary) and not _matches(first, primary) else (first, second)


def _segment(unit: Unit, language: str) -> str:
    exact = unit.segments.get(language.casefold())
    return exact or next((text for name, text in unit.segments.items() if _matches(name, language)), "")


def _matches(language: str, name: str) -> bool:
    """Whether a language such as en-us is the one named: en-us or en."""
    return bool(name) and (language == name.casefold() or language.partition("-")[0] == name.casefold())


def _units(path: Path, parser: _UnitParser, progress: ProgressCallback | None = None) -> Iterator[Unit | BadLine]:
    """Yield all units; raise DataError where the XML is not well-formed, or nothing ends in many bytes."""
    size, is_empty = 0, True
    for block in read_blocks(path, BLOCK, progress, binary=True):
        is_empty = False
        size += len(block)
        yield from parser.feed(block)
        if size - parser.expat.CurrentByteIndex > MAX_TOKEN:
            raise DataError(f"{path}: a tag or comment is longer than {MAX_TOKEN:,} bytes")
    if is_empty:
        raise DataError(f"{path} is empty")
    yield from parser.feed(b"", last=True)
