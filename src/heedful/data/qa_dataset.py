"""Questions about passages for extractive question answering: tokenizer, dataset of windows, and batches (T5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful.data.batching import BucketedBatches, Indices
from heedful.data.collate import pad_sequences
from heedful.data.corpus_readers import is_held_out
from heedful.data.dataset import PreparedData, SplitWriter, dataset_folder, new_dataset, open_dataset, train_tokenizer
from heedful.data.line_reader import BadLine, OnBadLine, handle_bad_line
from heedful.data.passage_windows import Passage, PassageWindows
from heedful.data.progress import ProgressCallback, StartProgress, no_progress
from heedful.data.qa_reader import Question, read_questions
from heedful.data.token_store import Sequences, is_intact
from heedful.errors import DataError
from heedful.shapes import Int
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.tokenizer import Tokenizer, TokenizerConfig


@dataclass(frozen=True)
class SpanBatch:
    """START question SEPARATOR passage SEPARATOR, padded at the end."""

    ignore_index: ClassVar[int] = -100

    tokens: Int[Tensor, "batch tokens"]
    lengths: Int[Tensor, " batch"]
    passage_starts: Int[Tensor, " batch"]
    """Position of the passage's first token."""
    labels: Int[Tensor, "batch 2"]
    """Positions of the answer's first and last token; 0 and 0 if it is not in this window."""


class SpanBatches(BucketedBatches):
    """Windows of similar length in batches of at most `max_tokens`.

    `positions` has three numbers for each window: of the passage's first token and the answer's first and last.
    """

    unit = "positions"

    def __init__(
        self, windows: Sequences, positions: Sequences, *, max_tokens: int, seed: int, shuffle: bool = True
    ) -> None:
        super().__init__(windows.lengths[None], max_tokens=max_tokens, seed=seed, shuffle=shuffle)
        self.windows, self.positions = windows, positions

    @property
    def labels_per_epoch(self) -> int:
        """Start and end positions to predict in an epoch."""
        return 2 * len(self.windows)

    def batch(self, epoch: int, indices: Indices) -> SpanBatch:
        chosen = indices.tolist()
        positions = torch.from_numpy(np.stack([self.positions[index] for index in chosen]).astype(np.int64))
        tokens, lengths = pad_sequences([self.windows[index] for index in chosen])
        return SpanBatch(tokens, lengths, positions[:, 0].clone(), positions[:, 1:].clone())


def train_question_tokenizer(
    files: Sequence[Path],
    config: TokenizerConfig,
    *,
    sample_share: float,
    held_out: float,
    on_bad_line: OnBadLine = "fail",
    start_progress: StartProgress = no_progress,
) -> Tokenizer:
    """Train a tokenizer on questions and passages, each passage once, without the held-out ones."""

    def texts(progress: ProgressCallback) -> Iterator[str]:
        passage = ""
        for question in read_questions(files, on_bad_line=on_bad_line, progress=progress):
            if not is_held_out(question.passage, held_out):
                if question.passage != passage:
                    yield (passage := question.passage)
                yield question.question

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
    """Encode windows of passages with their questions, or open them if they are stored.

    Without validation files, passages are held out by hash, with all their questions.
    """
    files = [*train, *valid]
    settings = {"split": [len(train), held_out], **windows.model_dump()}
    folder = dataset_folder(files, (tokenizer,), kind="questions", **settings)
    if not is_intact(folder):
        sides = {"windows": len(tokenizer), "positions": windows.max_tokens}
        with new_dataset(folder, sides, files, start_progress) as (writer, progress):
            encoder = _WindowEncoder(tokenizer, windows, on_bad_line)
            for question in read_questions(train, on_bad_line=on_bad_line, dropped=writer.dropped, progress=progress):
                is_valid = not valid and is_held_out(question.passage, held_out)
                encoder.write(question, writer.splits["valid" if is_valid else "train"])
            writer.dropped += encoder.dropped
            writer.first_lines = dict(encoder.first_lines)
            if valid:
                for question in read_questions(valid, on_bad_line=on_bad_line, progress=progress):
                    encoder.write(question, writer.splits["valid"])
    return open_dataset(folder, (tokenizer,), ("windows", "positions"))


class _WindowEncoder:
    """Splits passages into windows; consecutive questions about one passage encode it once."""

    def __init__(self, tokenizer: Tokenizer, windows: PassageWindows, on_bad_line: OnBadLine) -> None:
        self.tokenizer, self.windows, self.on_bad_line = tokenizer, windows, on_bad_line
        self.template = SpecialTokenTemplate.from_tokenizer(tokenizer)
        self.passage = Passage("", [], [], [])
        self.dropped: Counter[str] = Counter()
        self.first_lines: dict[str, int] = {}

    def write(self, question: Question, split: SplitWriter) -> None:
        """Write every window of the passage as an example; raise or count a question that does not fit."""
        if question.passage != self.passage.text:
            self.passage = Passage.encode(question.passage, self.tokenizer)
            split.count(question.passage, examples=0)
        passage, tokens = self.passage, self.tokenizer.encode([question.question])[0]
        try:
            windows = self.windows.split(len(tokens), len(passage))
            span = None
            if question.answers:
                text, start = question.answers[0]
                span = passage.token_span(start, start + len(text))
        except DataError as error:
            message = f"question {question.id!r:.40}: {error}"
            handle_bad_line(BadLine("malformed", question.path, question.line, message), self.on_bad_line, None)
            reason = f"questions that do not fit in windows of {self.windows.max_tokens} tokens"
            self.dropped[reason] += 1
            self.first_lines.setdefault(reason, question.line)
            return
        passage_start = len(tokens) + 2
        for window in windows:
            window_tokens = self.template.wrap(tokens, passage.tokens[window.start : window.end])
            split.write(window_tokens, [passage_start, *window.answer_positions(span, passage_start)])
        answers = (answer.text for answer in question.answers)
        split.count("", question.question, question.passage, *answers)
