"""The state file of a census: the scores measured so far, from which an interrupted census resumes.

The file of a complete census is kept: repeating the census, for a picture or a smaller model, reads it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from heedful.files import atomic_file
from heedful.inspection.census.output_scores import Values

SAVE_SECONDS = 10.0


class CensusScores:
    """Loss and correct outputs of each text under each ablation; NaN where not measured yet. The first row: none."""

    def __init__(self, ablations: int, texts: int, file: Path | None = None, fingerprint: str = "") -> None:
        """`fingerprint`: the checksum of everything the scores depend on; a file with a different one is ignored."""
        self.loss: Values = np.full((ablations + 1, texts), np.nan)
        self.correct: Values = np.full((ablations + 1, texts), np.nan)
        self.file, self.fingerprint = file, fingerprint
        self.saved = time.monotonic()
        if file is not None:
            self._read(file)

    @contextmanager
    def saved_at_exit(self) -> Iterator[None]:
        """Write the state file when the block ends, also after an error."""
        try:
            yield
        finally:
            self.save()

    def save(self) -> None:
        self.saved = time.monotonic()
        if self.file is None:
            return
        with suppress(OSError):  # a full disk loses the state, not the census
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(self.file) as temporary, temporary.open("wb") as stream:
                np.savez(stream, loss=self.loss, correct=self.correct, fingerprint=self.fingerprint)

    def save_periodically(self) -> None:
        if time.monotonic() > self.saved + SAVE_SECONDS:
            self.save()

    @property
    def measured(self) -> int:
        """Number of scores already measured."""
        return int(np.isfinite(self.loss).sum())

    def _read(self, file: Path) -> None:
        """Load the scores of the same census; a damaged file, or one of a different census, is ignored."""
        with suppress(OSError, ValueError, KeyError, EOFError, BadZipFile), np.load(file, allow_pickle=False) as stored:
            loss, correct = stored["loss"], stored["correct"]
            is_same = str(stored["fingerprint"]) == self.fingerprint
            if is_same and loss.shape == correct.shape == self.loss.shape:
                self.loss, self.correct = loss, correct
