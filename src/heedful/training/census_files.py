"""`heedful.census`: measure what each part of a trained model contributes, on validation files."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from heedful.data.corpus_files import as_columns, content_hash
from heedful.data.corpus_readers import has_columns, read_documents, read_pairs, require_columns
from heedful.data.labeled_reader import read_labeled
from heedful.data.line_reader import OnBadLine
from heedful.data.progress import StartProgress
from heedful.data.qa_reader import read_questions
from heedful.data.table_reader import LIST_SEPARATOR
from heedful.errors import DataError, UsageError
from heedful.evaluation.census_translations import score_translations
from heedful.files import MANIFEST
from heedful.inference.classifier import Classifier
from heedful.inference.trained_model import TrainedModel
from heedful.inspection.census.census_result import AblateTo, Census, ablation_choices
from heedful.loading import load
from heedful.training.reporting.display import progress_listeners
from heedful.training.reporting.events import Events, Listener
from heedful.training.request import FilePath
from heedful.training.tasks.classification import require_same_columns
from heedful.user_cache import cache_folder, private_folder

Example = str | tuple[str, str]
TEXT_CHARACTERS = 1000
"""Characters of running text that count as one text of a census."""
DEFAULT_LIMIT = 500
STATE_SECONDS = 7 * 24 * 3600
"""Time for which the state of an interrupted census is kept."""


def census(
    model: TrainedModel | FilePath,
    *files: FilePath,
    to: AblateTo | Sequence[AblateTo] = ("zero", "mean"),
    limit: int | None = DEFAULT_LIMIT,
    columns: str | Sequence[str | int] = (),
    on_bad_line: OnBadLine = "fail",
    save_means: bool = False,
    translations: int = 0,
    device: str = "auto",
    show_progress: bool | None = None,
    listeners: Sequence[Listener] = (),
) -> Census:
    """Switch every part of a model off in turn on validation files: `heedful.census("translate-1", "valid.tsv")`.

    `model` is a folder or a loaded model; files are read as for training. `to`: what is put in a part's place, zeros,
    its mean over these texts, or both. `limit`: maximum number of texts, evenly spaced. `save_means` stores the means
    in the model's folder, for `Ablate(…, to="mean")`. `translations`: number of texts to translate without each part,
    for BLEU and chrF. An interrupted census of a folder continues where it stopped, and within a week the same one is
    not measured again.
    """
    choices = ablation_choices(to)
    opened = open_census(
        model, files, columns=columns, on_bad_line=on_bad_line, device=device, show_progress=show_progress,
        listeners=listeners,
    )  # fmt: skip
    trained, examples = opened.trained, opened.examples
    if save_means:
        trained.measure_means(examples, limit=limit, start_progress=opened.start_progress)
        trained.save_settings()
    state = opened.state_file(*choices, limit)
    result = trained.census(examples, to=choices, limit=limit, state=state, start_progress=opened.start_progress)
    if not translations:
        return result
    if "mean" in choices[:1] and trained.means is None:
        trained.measure_means(examples, limit=limit, start_progress=opened.start_progress)
    pairs = [(example, "") if isinstance(example, str) else example for example in examples]
    return score_translations(result, trained, pairs, translations, opened.start_progress)


@dataclass(frozen=True)
class CensusFiles:
    """A model and the validation files of its census, opened."""

    trained: TrainedModel
    examples: list[Example]
    start_progress: StartProgress
    settings: tuple[object, ...]
    """The files' checksum, and how they are read."""

    def state_file(self, *settings: object) -> Path | None:
        """The file an interrupted census is continued from; None without a model folder."""
        folder = self.trained.folder
        if folder is None or not (folder / MANIFEST).is_file():
            return None
        key = hashlib.sha256((folder / MANIFEST).read_bytes())
        key.update(repr((*self.settings, *settings)).encode())
        states = private_folder(cache_folder() / "census")
        for state in states.glob("*.npz"):
            if state.lstat().st_mtime < time.time() - STATE_SECONDS:
                state.unlink(missing_ok=True)
        return states / f"{key.hexdigest()[:32]}.npz"


def open_census(
    model: TrainedModel | FilePath, files: Sequence[FilePath], *, columns: str | Sequence[str | int],
    on_bad_line: OnBadLine, device: str, show_progress: bool | None, listeners: Sequence[Listener],
) -> CensusFiles:  # fmt: skip
    """Load the model, and read the files as for training."""
    if not files:
        raise UsageError("a census needs validation text: name its files")
    trained = model if isinstance(model, TrainedModel) else load(model, device=device)
    paths, wanted = [Path(file) for file in files], as_columns(columns)
    if wanted:
        require_columns(paths, wanted)
    elif trained.training_text is not None and has_columns(paths, trained.training_text.columns):
        wanted = trained.training_text.columns
    examples = list(census_examples(trained, paths, wanted, on_bad_line))
    if not examples:
        raise DataError(f"{', '.join(map(str, paths))}: no texts to take a census on")
    stage = Events(*progress_listeners(show_progress), *listeners).stage
    return CensusFiles(trained, examples, stage, (content_hash(paths), wanted, on_bad_line))


def census_examples(
    trained: TrainedModel, files: Sequence[Path], columns: Sequence[str], on_bad_line: OnBadLine
) -> Iterator[Example]:
    """The texts of files with their answers, read as the model's task reads them."""
    trained.require_tokenizer()
    match trained.task:
        case "translate":
            for pair in read_pairs(files, columns=columns, on_bad_line=on_bad_line):
                yield pair.source, pair.target
        case "classify":
            assert isinstance(trained, Classifier)
            require_same_columns(trained, files, columns)
            for row in read_labeled(files, columns=columns, on_bad_line=on_bad_line):
                yield "\t".join(row.texts), LIST_SEPARATOR.join(row.labels)
        case "answer":
            for question in read_questions(files, columns=columns, on_bad_line=on_bad_line):
                if question.answers:
                    yield f"{question.question}\t{question.passage}", question.answers[0].text
        case "generate" | "fill":
            yield from _running_text(read_documents(files, columns=columns, on_bad_line=on_bad_line))
        case _:
            raise UsageError(f"{trained.name} makes vectors and predicts nothing: there is no loss to take a census of")


def _running_text(lines: Iterator[tuple[str, bool]]) -> Iterator[str]:
    """Join lines to texts of about `TEXT_CHARACTERS`, none of which spans two documents."""
    text = ""
    for line, ends_document in lines:
        text += line
        if len(text) >= TEXT_CHARACTERS or ends_document:
            if text.strip():
                yield text
            text = ""
    if text.strip():
        yield text
