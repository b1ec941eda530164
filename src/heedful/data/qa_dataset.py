"""Questions about passages for extractive question answering: tokenizer, dataset of windows, and batches (T5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful.data.batching import BucketedBatches, Indices
from heedful.data.collate import pad_sequences
from heedful.data.corpus_files import CorpusFiles
from heedful.data.dataset import DatasetWriter, PreparedData, prepare_dataset, train_tokenizer
from heedful.data.line_reader import BadLine, handle_bad_line
from heedful.data.passage_windows import Passage, PassageWindows
from heedful.data.qa_reader import Question, read_questions
from heedful.data.token_store import Sequences
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


def train_question_tokenizer(files: CorpusFiles, config: TokenizerConfig, sample_share: float) -> Tokenizer:
    """Train a tokenizer on questions and passages, each passage once, without the held-out ones."""

    def texts(questions: Iterator[Question]) -> Iterator[str]:
        passage = ""
        for question in questions:
            if not files.holds_out(question.passage):
                if question.passage != passage:
                    yield (passage := question.passage)
                yield question.question

    return train_tokenizer(files, config, sample_share, partial(read_questions, columns=files.columns), texts)


def prepare_questions(files: CorpusFiles, tokenizer: Tokenizer, *, windows: PassageWindows) -> PreparedData:
    """Encode windows of passages with their questions, or open them if they are stored.

    Without validation files, passages are held out by hash, with all their questions. A question that does not fit in
    a window is an error, or left out.
    """
    template = SpecialTokenTemplate.from_tokenizer(tokenizer)
    too_long = f"questions that do not fit in windows of {windows.max_tokens} tokens"

    def write(writer: DatasetWriter) -> None:
        passage = Passage("", [], [], [])
        read = partial(read_questions, columns=files.columns)
        for block in writer.blocks(read, lambda question: files.holds_out(question.passage)):
            for question, split in block:
                if question.passage != passage.text:  # consecutive questions about one passage encode it once
                    passage = Passage.encode(question.passage, tokenizer)
                    split.count(question.passage, examples=0)
                try:
                    examples = encode_windows(question, passage, tokenizer, template, windows)
                except DataError as error:
                    message = f"question {question.id!r:.40}: {error}"
                    handle_bad_line(BadLine("malformed", question.path, question.line, message), files.on_bad_line)
                    writer.count_issue(writer.dropped, too_long, question.line)
                    continue
                for tokens, positions in examples:
                    split.write(tokens, positions)
                split.count("", question.question, question.passage, *(answer.text for answer in question.answers))

    sides = {"windows": len(tokenizer), "positions": windows.max_tokens}
    settings = {"kind": "questions", "columns": list(files.columns), **windows.model_dump()}
    return prepare_dataset(files, (tokenizer,), sides, write, **settings)


def encode_windows(
    question: Question,
    passage: Passage,
    tokenizer: Tokenizer,
    template: SpecialTokenTemplate,
    windows: PassageWindows,
) -> list[tuple[list[int], list[int]]]:
    """The tokens and positions of every window of the passage; raise DataError if the question does not fit."""
    tokens = tokenizer.encode([question.question])[0]
    parts = windows.split(len(tokens), len(passage))
    span = None
    if question.answers:
        text, start = question.answers[0]
        span = passage.token_span(start, start + len(text))
    passage_start = len(tokens) + 2
    return [
        (
            template.wrap(tokens, passage.tokens[window.start : window.end]),
            [passage_start, *window.answer_positions(span, passage_start)],
        )
        for window in parts
    ]
