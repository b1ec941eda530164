"""The folders that the studio may read from and train in, given when it starts; no other path is ever opened."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.data.table_layout import COMPRESSED
from heedful.errors import UsageError
from heedful.files import write_atomic
from heedful.training.run_catalog import RECIPE_FILE

SUFFIXES = (".txt", ".tsv", ".csv", ".jsonl", ".json", ".tmx", ".gz", ".xz", ".en", ".de", ".fr", ".source", ".target")
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
RESULTS = ("config.json", RECIPE_FILE, "trials")
"""Names by which the folder of a model, a run or a study is known; its files are not offered as training text."""
MAX_FILES, MAX_DEPTH = 500, 3
PASTED_FOLDER, CORRECTIONS_FILE = "pasted", "corrections.tsv"


@dataclass(frozen=True)
class Workspace:
    """A folder for runs and pasted text, and folders with text to choose from."""

    folder: Path
    data: tuple[Path, ...] = ()

    @property
    def roots(self) -> tuple[Path, ...]:
        return (self.folder, *self.data)

    def files(self) -> list[dict[str, Any]]:
        """The text files that can be chosen, by names that `resolve` takes."""
        return [{"name": name, "bytes": path.stat().st_size} for name, path in self._listed().items()]

    def resolve(self, name: str) -> Path:
        """The file that `files` lists under this name. A name is never read as a path: no other file can be reached."""
        path = self._listed().get(name)
        if path is None:
            raise UsageError("this file is not in the studio's folders; choose one from the list")
        return path

    def _listed(self) -> dict[str, Path]:
        listed: dict[str, Path] = {}
        seen: set[Path] = set()
        pasted = self.folder / PASTED_FOLDER
        starts = [] if pasted.is_symlink() else [(0, self.folder, pasted)]  # first: many other files hide none of these
        for number, root, start in (*starts, *((number, root, root) for number, root in enumerate(self.roots))):
            for path in _text_files(start):
                if len(listed) >= MAX_FILES:
                    return listed
                if (real := path.resolve()) not in seen:  # else a folder within another
                    seen.add(real)
                    listed[f"{number}/{path.relative_to(root)}"] = real
        return listed

    def new_run_folder(self, name: str) -> Path:
        """A folder for a run, which must be free."""
        if not NAME.fullmatch(name):
            raise UsageError("a run's name has letters, digits, dots, hyphens and underscores, at most 64")
        folder = self.folder / name
        if folder.exists():
            raise UsageError(f"there is a run called {name} already; choose another name")
        return folder

    def run_folder(self, name: str) -> Path:
        """The folder of a run that exists."""
        folder = self.folder / name
        if not NAME.fullmatch(name) or folder.is_symlink() or not (folder / RECIPE_FILE).is_file():
            raise UsageError("there is no such run")
        return folder

    def save_pasted(self, name: str, text: str) -> str:
        """Keep pasted text as a file; returns the name it is listed under."""
        if not NAME.fullmatch(name):
            raise UsageError("a file's name has letters, digits, dots, hyphens and underscores, at most 64")
        folder = self.folder / PASTED_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        if folder.is_symlink():
            raise UsageError(f"the folder {PASTED_FOLDER} is a link; text is only written into the studio's own folder")
        path = folder / name
        if path.suffix not in SUFFIXES or path.suffix in COMPRESSED:
            raise UsageError(f"{name} would not be read as text; end its name with .txt or .tsv")
        content = text if text.endswith("\n") else f"{text}\n"
        if path.exists() and path.read_text(encoding="utf-8", errors="replace") != content:
            raise UsageError(f"there is another text called {name} already; choose another name")
        write_atomic(path, content)
        return f"0/{PASTED_FOLDER}/{name}"


def _text_files(root: Path) -> Iterator[Path]:
    """Text files below a folder, a few levels deep; links out of it and files of models are left out."""
    pending = [(root, 0)]
    while pending:
        folder, depth = pending.pop()
        try:
            entries = sorted(folder.iterdir())
        except OSError:
            continue
        if any((folder / name).exists() for name in RESULTS):
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if entry.is_dir() and depth < MAX_DEPTH:
                pending.append((entry, depth + 1))
            elif entry.is_file() and entry.suffix in SUFFIXES:
                yield entry
