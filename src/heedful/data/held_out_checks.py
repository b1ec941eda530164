"""Whether held-out text is of the kind that is trained on: the same languages, on the same sides.

Scores on other text say nothing about the model, and they choose its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from heedful.data.corpus_statistics import ColumnStatistics
from heedful.data.doctor_report import Finding
from heedful.data.unicode_scripts import SCRIPTS
from heedful.errors import DataError

MIN_SWAPPED_WORDS, SWAPPED_MARGIN = 20, 0.2
"""Different words of a held-out side, at least, and how much better they fit the other side if sides are swapped."""
MIN_WORDS, MIN_TRAINING_WORDS, MIN_KNOWN = 100, 1000, 0.1
"""Different words on both sides, at least, and the least share of those held out that the training text has."""
CONSEQUENCE = "scores on it, which choose the checkpoint, say nothing about this model"

Columns = Sequence[ColumnStatistics]


def refuse_swapped(file: Path, columns: Columns, held_out_file: Path, held_out: Columns) -> None:
    """Raise DataError if source and target of the held-out files are swapped, by script or by words."""
    scripts, other = ([column.script for column in each] for each in (columns, held_out))
    if scripts != other and scripts == other[::-1]:
        raise DataError(f"{held_out_file} is {other[0]}, but {file} is {scripts[0]}: are the files in the wrong order?")
    if len(columns) == 2 and all(
        len(each.vocabulary) >= MIN_SWAPPED_WORDS and _known(each, across) > _known(each, same) + SWAPPED_MARGIN
        for each, same, across in zip(held_out, columns, columns[::-1], strict=True)
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
    for index, (name, column, other) in enumerate(zip(names, columns, held_out, strict=True)):
        file, held_out_file = (each[min(index, len(each) - 1)] for each in (files, held_out_files))
        texts = f"held-out texts: the {name} side of {held_out_file.name}" if len(names) > 1 else "held-out texts"
        rows = int(other.lengths.sum())
        if column.script != other.script and {column.script, other.script} <= {*SCRIPTS[1:]}:
            description = f"{texts} is {other.script}, that of {file.name} is {column.script}; {CONSEQUENCE}"
            if len(names) == 1:
                description = f"{texts} in {other.script} script, the training text is {column.script}; {CONSEQUENCE}"
            yield Finding(kind="held_out", description=description, count=rows)
        elif (
            other.script != "none"  # dates and numbers are in no language: hardly any occurs twice
            and len(other.vocabulary) >= MIN_WORDS
            and len(column.vocabulary) >= MIN_TRAINING_WORDS
            and _known(other, column) < MIN_KNOWN
        ):
            share = f"{_known(other, column):.0%} of their words occur in the training text"
            description = f"{texts}: {share}, as if in another language; {CONSEQUENCE}"
            yield Finding(kind="held_out", description=description, count=rows)


def _known(held_out: ColumnStatistics, column: ColumnStatistics) -> float:
    """The share of the held-out words that a column of the training text has."""
    return len(held_out.vocabulary & column.vocabulary) / max(1, len(held_out.vocabulary))
