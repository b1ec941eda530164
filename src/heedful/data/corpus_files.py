"""The files of a corpus: which are trained on, which are held out, and how they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from glob import glob
from os import PathLike
from pathlib import Path

from heedful.data.line_reader import OnBadLine
from heedful.data.progress import StartProgress, no_progress
from heedful.data.table_layout import COMPRESSED, file_format
from heedful.errors import DataError, UsageError

Files = Sequence[str | PathLike[str]]
TEXT_SUFFIXES = (".txt", ".jsonl", *COMPRESSED)


@dataclass(frozen=True)
class CorpusFiles:
    """Training and validation files, and how they are read. Without validation files, a share is held out."""

    train: Sequence[Path]
    valid: Sequence[Path] = ()
    held_out: float = 0.0
    """Share of the training files that is held out, if there are no validation files."""
    columns: Sequence[str] = ()
    """Names of the columns that are read, or their numbers from 1; empty: the usual ones."""
    on_bad_line: OnBadLine = "fail"
    start_progress: StartProgress = no_progress

    @property
    def all(self) -> list[Path]:
        return [*self.train, *self.valid]

    @property
    def held_out_share(self) -> float:
        """Share of the training files that is not trained on."""
        return 0.0 if self.valid else self.held_out

    def holds_out(self, text: str) -> bool:
        """Whether a text of the training files is held out."""
        return is_held_out(text, self.held_out_share)


def is_held_out(text: str, share: float) -> bool:
    """Whether a text belongs to the held-out share: decided by its hash, so that it is never in both splits."""
    return uniform_hash(text, b"held out") < share * 2**64


def sample_by_hash(texts: Iterable[str], share: float) -> Iterable[str]:
    """A share of the texts, chosen by their hash, so that a sorted file is sampled evenly."""
    return texts if share >= 1 else (text for text in texts if uniform_hash(text) < share * 2**64)


def uniform_hash(text: str, person: bytes = b"") -> int:
    """A 64-bit hash of a text, uniform over texts; different `person`s give independent ones."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, person=person).digest(), "big")


def content_hash(files: Files) -> str:
    """SHA-256 of the files' contents and formats, in order; paths and dates do not matter."""
    total = hashlib.sha256()
    for path in expand_folders(files):
        try:
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest() + file_format(path).encode())
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
    return total.hexdigest()


def named_checksums(files: Files, most: int = 8) -> str:
    """The names of files with the first digits of their SHA-256, by which the same files can be recognized."""
    paths = expand_folders(files)
    named = []
    for path in paths[:most]:
        with path.open("rb") as file:
            named.append(f"{path.name} (SHA-256 {hashlib.file_digest(file, 'sha256').hexdigest()[:12]}…)")
    return ", ".join(named) + (f" and {len(paths) - most:,} more" if len(paths) > most else "")


def as_paths(files: Files | str | PathLike[str]) -> list[Path]:
    """Paths from one file name or several."""
    return [Path(files)] if isinstance(files, str | PathLike) else [Path(file) for file in files]


def as_columns(columns: str | Sequence[str | int] | None) -> tuple[str, ...]:
    """Columns from "source,target", "1,2" or a list."""
    if not isinstance(columns, str | list | tuple | None):
        raise UsageError(f"columns are names or numbers, as in 'en,de' or [1, 2]; got {columns!r:.60}")
    names = columns.split(",") if isinstance(columns, str) else map(str, columns or ())
    return tuple(name.strip() for name in names if name.strip())


def expand_folders(files: Files) -> list[Path]:
    """Replace folders by the non-empty text files in them, and patterns by what they match, ordered by name."""
    expanded: list[Path] = []
    for path in as_paths(files):
        text_files = _text_files(path)
        if not text_files and path.is_dir():
            raise DataError(f"{path} is a folder without text files ({', '.join(TEXT_SUFFIXES)})")
        if not text_files:
            raise DataError(f"{path} matches no files")
        expanded += text_files
    return expanded


def size_on_disk(files: Files) -> int:
    """Total bytes of these files and of those in folders; a missing file counts 0, and fails when it is read."""
    return sum(file.stat().st_size for path in as_paths(files) for file in _text_files(path) if file.is_file())


def _text_files(path: Path) -> list[Path]:
    """The path itself, the files a pattern matches, or the non-empty text files of a folder, hidden ones excepted.

    A pattern that matches files and folders selects the files; one that matches folders only, the files in them.
    """
    if not path.is_dir():
        if path.exists() or not any(character in str(path) for character in "*?["):
            return [path]
        matches = [Path(match) for match in sorted(glob(str(path), recursive=True))]
        matched_files = [match for match in matches if not match.is_dir()]
        return matched_files or [file for folder in matches for file in _text_files(folder)]
    files = (file for file in sorted(path.rglob("*")) if file.suffix.lower() in TEXT_SUFFIXES and file.is_file())
    visible = (file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts))
    return [file for file in visible if file.stat().st_size]
