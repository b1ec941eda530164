"""Questions and passages as stores of windows: every window is an example, with where the answer stands in it (T5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from heedful.data.corpus_readers import Files, is_held_out, size_on_disk, usable_rows
from heedful.data.dataset_preparation import train_tokenizer
from heedful.data.dataset_writer import MAX_SAMPLE_TEXTS, SplitWriter, PreparedData, write_metadata, dataset_folder, split_writers, open_dataset
from heedful.data.line_reader import BadLine, OnBadLine, handle_bad_line
from heedful.data.passage_windows import Passage, PassageWindows
from heedful.data.qa_reader import Question, scan_questions
from heedful.data.progress import ProgressCallback, StartProgress, no_progress
from heedful.data.token_store import is_intact, create_store
from heedful.errors import DataError
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

SIDES = ("windows", "places")


def read_questions(
    files: Files,
    *,
    on_bad_line: OnBadLine = "fail",
    dropped: Counter[str] | None = None,
    progress: ProgressCallback | None = None,
) -> Iterator[Question]:
    """The usable questions; what is left out is counted in `dropped`."""
    yield from usable_rows("question", files, scan_questions(files, progress=progress), on_bad_line, dropped)


def train_question_tokenizer(
    files: Sequence[Path],
    config: TokenizerConfig,
    *,
    sample_share: float,
    held_out: float,
    on_bad_line: OnBadLine = "fail",
    start_progress: StartProgress = no_progress,
) -> Tokenizer:
    """A tokenizer for questions and passages, each passage once. What is held out is not read."""

    def texts(progress: ProgressCallback) -> Iterator[str]:
        passage = ""
        for asked in read_questions(files, on_bad_line=on_bad_line, progress=progress):
            if not is_held_out(asked.passage, held_out):
                if asked.passage != passage:
                    yield (passage := asked.passage)
                yield asked.question

    return train_tokenizer(texts, files, config, sample_share, start_progress)


def prepare_questions(
    train: Sequence[Path],
    valid: Sequence[Path],
    tokenizer: Tokenizer,
    *,
    held_out: float,
    windows: PassageWindows,
    on_bad_line: OnBadLine = "fail",
    start_progress: StartProgress = no_progress,
) -> PreparedData:
    """Stores of windows. Without validation files, a share of the passages is held out by hash, with all that is asked
    about them."""
    how = {"kind": "questions", "split": [len(train), held_out], **windows.model_dump()}
    folder = dataset_folder([*train, *valid], (tokenizer,), **how)

    def part(asked: Question) -> str:
        return "valid" if not valid and is_held_out(asked.passage, held_out) else "train"

    if not is_intact(folder):
        with (
            create_store(folder) as aside,
            split_writers(aside, {"windows": len(tokenizer), "places": windows.max_tokens}) as parts,
            start_progress("encoding", size_on_disk([*train, *valid])) as progress,
        ):
            encoder = _Encoder(tokenizer, windows, on_bad_line)
            for asked in read_questions(train, on_bad_line=on_bad_line, dropped=encoder.dropped, progress=progress):
                encoder.write(asked, parts[part(asked)])
            dropped, first = +encoder.dropped, dict(encoder.first)
            if valid:
                for asked in read_questions(valid, on_bad_line=on_bad_line, progress=progress):
                    encoder.write(asked, parts["valid"])
            write_metadata(aside, parts, dropped, first)
    return open_dataset(folder, (tokenizer,), SIDES)


class _Encoder:
    """Cuts questions and passages into windows; a passage that comes back is not read again."""

    def __init__(self, tokenizer: Tokenizer, windows: PassageWindows, on_bad_line: OnBadLine) -> None:
        self.tokenizer, self.windows, self.on_bad_line = tokenizer, windows, on_bad_line
        self.frame = SpecialTokenTemplate.from_tokenizer(tokenizer)
        self.passage = Passage("", [], [], [])
        self.dropped: Counter[str] = Counter()
        self.first: dict[str, int] = {}

    def write(self, asked: Question, part: SplitWriter) -> None:
        """Every window as an example of the part. What does not fit stops the work, or is left out and counted."""
        if asked.passage != self.passage.text:
            self.passage = Passage.encode(asked.passage, self.tokenizer)
            part.measure(asked.passage)
        passage, tokens = self.passage, self.tokenizer.encode([asked.question])[0]
        try:
            cuts = self.windows.split(len(tokens), len(passage))
            span = None
            if asked.answers:
                text, start = asked.answers[0]
                span = passage.token_span(start, start + len(text))
        except DataError as error:
            handle_bad_line(
                BadLine("malformed", asked.path, asked.line, f"question {asked.id!r:.40}: {error}"),
                self.on_bad_line,
                None,
            )
            reason = f"questions that cannot be read in windows of {self.windows.max_tokens} tokens"
            self.dropped[reason] += 1
            self.first.setdefault(reason, asked.line)
            return
        windows, places = part.sides
        begins = len(tokens) + 2
        for window in cuts:
            windows.write(self.frame.wrap(tokens, passage.tokens[window.start : window.end]))
            windows.end()
            places.write([begins, *window.answer_positions(span, begins)])
            places.end()
        part.size["examples"] += 1
        if len(part.texts) < MAX_SAMPLE_TEXTS:
            part.texts.append((asked.question, asked.passage, *(answer.text for answer in asked.answers)))
