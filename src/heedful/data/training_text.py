"""The record of a model's training text: its columns, its scripts, and checksums of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from heedful.config import Config
from heedful.data.corpus_files import expand_folders
from heedful.data.unicode_scripts import SCRIPTS
from heedful.errors import DataError


class TrainingText(Config):
    """The content of training_text.json: how the text was read, and what held-out text is compared with."""

    columns: tuple[str, ...] = ()
    """The requested columns; empty: the usual ones."""
    scripts: tuple[str, ...] = ()
    """The script of each column of text: source and target."""
    bleu_tokenizer: str | None = None
    """sacreBLEU's tokenizer for the target language."""
    train: tuple[str, ...] = ()
    """The first digits of each training file's SHA-256."""
    valid: tuple[str, ...] = ()

    def refuse_swapped(self, files: Sequence[Path], scripts: tuple[str, ...]) -> None:
        """Raise DataError if the scripts of a file's columns are those that this model expects, swapped."""
        if self.scripts != scripts and self.scripts == scripts[::-1]:
            raise DataError(
                f"{files[0]} is {scripts[0]}, but this model reads {self.scripts[0]}: are the files in the wrong order?"
            )

    def target_warnings(self, files: Sequence[Path], scripts: tuple[str, ...]) -> Iterator[str]:
        """Yield a warning if the target is in another script than that of the training text."""
        if self.scripts and scripts[-1] != self.scripts[-1] and {scripts[-1], self.scripts[-1]} <= {*SCRIPTS[1:]}:
            target, trained = scripts[-1], self.scripts[-1]
            yield f"{files[-1]}: the target is {target}, but this model writes {trained}: another language?"

    def warnings(self, files: Sequence[Path]) -> Iterator[str]:
        """Yield a warning for each file that this model was trained on or selected by, recognized by checksum."""
        for file in expand_folders(files):
            digest = file_digest(file)
            if digest in self.train:
                yield f"{file} is text this model was trained on: scores on it say nothing about other text"
            elif digest in self.valid:
                yield f"{file} is the validation text this model was selected by: scores on it are biased upwards"


def file_digests(files: Sequence[Path]) -> tuple[str, ...]:
    """The digests of files, and of the files in folders."""
    return tuple(map(file_digest, expand_folders(files)))


def file_digest(path: Path) -> str:
    """The first 16 digits of a file's SHA-256; empty if it is not a plain file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
