"""Check that held-out text has the languages of the training text, on the same sides.

Scores on other text say nothing about the model, yet they select its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from heedful.data.corpus_statistics import ColumnStatistics
from heedful.data.doctor_report import Finding
from heedful.data.unicode_scripts import SCRIPTS
from heedful.errors import DataError

MIN_SWAPPED_WORDS, SWAPPED_MARGIN = 20, 0.2
"""Minimum distinct words of a held-out side, and the margin by which swapped words must fit the other side better."""
MIN_WORDS, MIN_TRAINING_WORDS, MIN_KNOWN = 100, 1000, 0.1
"""Minimum distinct words of held-out and training text, and the minimum share of held-out words that are known."""
CONSEQUENCE = "scores on it, which choose the checkpoint, say nothing about this model"

Columns = Sequence[ColumnStatistics]


def refuse_swapped(file: Path, columns: Columns, held_out_file: Path, held_out: Columns) -> None:
    """Raise DataError if source and target of the held-out files are swapped, by script or by words."""
    scripts, held = ([column.script for column in side] for side in (columns, held_out))
    if scripts != held and scripts == held[::-1]:
        raise DataError(f"{held_out_file} is {held[0]}, but {file} is {scripts[0]}: are the files in the wrong order?")
    if len(columns) == 2 and all(
        len(side.vocabulary) >= MIN_SWAPPED_WORDS and _known(side, across) > _known(side, same) + SWAPPED_MARGIN
        for side, same, across in zip(held_out, columns, columns[::-1], strict=True)
    ):
        share, right = (f"{_known(held_out[0], column):.0%}" for column in (columns[1], columns[0]))
        raise DataError(
            f"{held_out_file} is in the target language of {file} ({share} of its words are target words, {right} "
            "source words): are the files in the wrong order? A model is scored in one direction only"
        )


def held_out_findings(
    names: Sequence[str], files: Sequence[Path], columns: Columns, held_out_files: Sequence[Path], held_out: Columns
) -> Iterator[Finding]:
    """Yield a finding for each column of held-out text in another script, or in hardly any known words."""
    for index, (name, column, unseen) in enumerate(zip(names, columns, held_out, strict=True)):
        file, held_out_file = (paths[min(index, len(paths) - 1)] for paths in (files, held_out_files))
        texts = f"held-out texts: the {name} side of {held_out_file.name}" if len(names) > 1 else "held-out texts"
        rows = int(unseen.lengths.sum())
        if column.script != unseen.script and {column.script, unseen.script} <= {*SCRIPTS[1:]}:
            description = f"{texts} is {unseen.script}, that of {file.name} is {column.script}; {CONSEQUENCE}"
            if len(names) == 1:
                description = f"{texts} in {unseen.script} script, the training text is {column.script}; {CONSEQUENCE}"
            yield Finding(kind="held_out", description=description, count=rows)
        elif (
            unseen.script != "none"  # dates and numbers are in no language: hardly any occurs twice
            and len(unseen.vocabulary) >= MIN_WORDS
            and len(column.vocabulary) >= MIN_TRAINING_WORDS
            and _known(unseen, column) < MIN_KNOWN
        ):
            share = f"{_known(unseen, column):.0%} of their words occur in the training text"
            description = f"{texts}: {share}, as if in another language; {CONSEQUENCE}"
            yield Finding(kind="held_out", description=description, count=rows)


def _known(held_out: ColumnStatistics, column: ColumnStatistics) -> float:
    """The share of the held-out words that a column of the training text has."""
    return len(held_out.vocabulary & column.vocabulary) / max(1, len(held_out.vocabulary))
