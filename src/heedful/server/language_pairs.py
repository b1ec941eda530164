"""Languages of a translator: from the names of its training files, or as the user states them."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from heedful.errors import CheckpointError, UsageError
from heedful.untrusted_files import read_bounded

RECIPE_FILE = "recipe.toml"
CODE = re.compile(r"[a-z]{2,3}([-_][A-Za-z]{2,4})?")


class LanguagePair(NamedTuple):
    """The languages a translator reads and writes, as codes: en, pt-BR."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


def parse_pair(text: str) -> LanguagePair:
    """A pair written as `en-de`."""
    source, _, target = text.partition("-")
    if not CODE.fullmatch(source) or not CODE.fullmatch(target) or source == target:
        raise UsageError(f"'{text:.60}' is not a pair of languages; write two codes, as in en-de")
    return LanguagePair(source, target)


def recorded_pair(folder: Path) -> LanguagePair | None:
    """The languages that the names of the training files state (`train.en`, `train.de.gz`); None if they do not."""
    try:
        data = tomllib.loads(read_bounded(folder / RECIPE_FILE).decode()).get("data", {})
        names = data.get("columns") or [Path(file).name for file in data.get("train", ())]
        codes = [code for name in names if (code := _code(str(name)))]
    except (OSError, ValueError, AttributeError, TypeError, CheckpointError):
        return None
    return LanguagePair(*codes) if len(names) == len(codes) == 2 and codes[0] != codes[1] else None


def language_name(code: str) -> str:
    """A language's English name; the code itself if it has none."""
    return language_names().get(code.replace("-", "_"), code)


@cache
def language_names() -> dict[str, str]:
    """English names of languages by their codes, from CLDR."""
    from babel import Locale

    return {str(code): str(name) for code, name in Locale("en").languages.items()}


def _code(name: str) -> str | None:
    """The language code that a file's or column's name ends with: train.en, corpus.de.gz, news_fr.txt, en."""
    stem = re.sub(r"\.(gz|xz|txt|tsv)$", "", re.sub(r"\.(gz|xz)$", "", name))
    code = re.split(r"[._]", stem)[-1].lower()
    return code if CODE.fullmatch(code) and code in language_names() else None
