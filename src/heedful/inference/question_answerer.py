"""The answer to a question, found in a passage: a stretch of its text, where it stands, and how sure that is (T5).

A passage that is too long for the model is read in windows (`heedful.data.passage_windows`);
`heedful.inference.span_scores` ranks the candidate spans of all windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import PositiveInt

from heedful.data.batching import length_buckets
from heedful.data.collate import pad_sequences
from heedful.data.passage_windows import SPECIAL_TOKENS_AROUND, Passage, PassageWindow, PassageWindows
from heedful.data.qa_reader import Question
from heedful.errors import HeedfulError, UsageError
from heedful.inference.span_scores import Scores, Span, SpanTable
from heedful.objectives.answer_span_loss import span_logits
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.tokenizer import Tokenizer

USUAL_WINDOW, USUAL_STRIDE, DEFAULT_ANSWER_TOKENS = 384, 128, 30
"""BERT's, for a model that came without its own."""
AT_ONCE = 8192
"""Tokens read together."""


class AnsweringSettings(PassageWindows):
    """How a model reads passages, and when it says that they do not tell; found out when training ends."""

    max_answer_tokens: PositiveInt
    """Tokens of the longest answer looked for."""
    threshold: float | None = None
    """Spans that score less are no answer; None: there always is one."""


def usual_answering(config: Any) -> AnsweringSettings:
    """For a model that came without."""
    longest = min(config.max_length, USUAL_WINDOW)
    return AnsweringSettings(max_tokens=longest, stride=min(USUAL_STRIDE, max(1, longest // 2)), max_answer_tokens=DEFAULT_ANSWER_TOKENS)


@dataclass(frozen=True)
class ExtractedAnswer:
    """What a passage says to a question."""

    question: str
    spans: tuple[Span, ...]
    """The best first."""
    threshold: float | None = None
    no_answer_probability: float = 0.0
    """The probability of no answer."""
    id: str | None = None

    @property
    def best(self) -> Span | None:
        """The answer; None if the passage does not tell."""
        first = self.spans[0]
        return None if self.threshold is not None and first.score < self.threshold else first

    @property
    def text(self) -> str:
        """The answer's text, empty if there is none."""
        return "" if self.best is None else self.best.text

    def to_json(self) -> dict[str, Any]:
        """As plain values. Where there is no answer it is null, and the span that was turned down leads its rivals."""
        found: dict[str, Any] = (
            {"question": self.question} if self.id is None else {"id": self.id, "question": self.question}
        )
        if self.best is None:
            sure = {"score": round(-self.spans[0].score, 4), "probability": round(self.no_answer_probability, 4)}
            return found | {"answer": None, "start": None, "end": None, **sure, "alternatives": _all(self.spans)}
        found |= self.best.to_json()
        return found | {"alternatives": _all(self.spans[1:])} if len(self.spans) > 1 else found


def _all(spans: Sequence[Span]) -> list[dict[str, Any]]:
    return [span.to_json() for span in spans]


@dataclass(frozen=True)
class EncodedQuestion:
    """A question and its passage as tokens."""

    question: str
    tokens: list[int]
    passage: Passage
    windows: list[PassageWindow]


def encode_question(question: str, passage: str, tokenizer: Tokenizer, how: PassageWindows) -> EncodedQuestion:
    """The tokens of both, and the windows they are read in; what cannot be read is an error that says why."""
    for name, text in (("question", question), ("passage", passage)):
        if not text.strip():
            raise UsageError(f"the {name} is empty: there is nothing to read")
    tokens, whole = tokenizer.encode([question])[0], Passage.encode(passage, tokenizer)
    if not any(map(whole.has_text, range(len(whole)))):
        raise UsageError(f"the passage {passage!r:.60} holds nothing that this model's vocabulary spells")
    return EncodedQuestion(question, tokens, whole, how.split(len(tokens), len(whole)))


class QuestionAnswerer:
    """Reads passages for answers, `top` for each question."""

    def __init__(self, model: Any, tokenizer: Tokenizer, how: AnsweringSettings, *, top: int = 1) -> None:
        if top < 1:
            raise UsageError(f"top must be 1 at least, got {top}")
        if model.config.positions == "learned" and how.max_tokens > model.config.max_length:
            raise UsageError(
                f"windows of {how.max_tokens} tokens are more than the {model.config.max_length} of this model"
            )
        self.model, self.tokenizer, self.how, self.top = model, tokenizer, how, top
        self.frame = SpecialTokenTemplate.from_tokenizer(tokenizer)

    def answer(self, pairs: Sequence[tuple[str, str]]) -> list[ExtractedAnswer]:
        """For each question and passage, in order."""
        return self.find([self.read(question, passage) for question, passage in pairs])

    def answer_named(
        self, questions: Sequence[Question], on_trouble: Callable[[Question, HeedfulError], object]
    ) -> list[ExtractedAnswer]:
        """For questions from a file, under their names, as many as can be read; of the others `on_trouble` is told."""
        asked = []
        for each in questions:
            try:
                asked.append((each.id, self.read(each.question, each.passage)))
            except HeedfulError as error:
                on_trouble(each, error)
        found = self.find([each for _, each in asked])
        return [replace(answer, id=name) for answer, (name, _) in zip(found, asked, strict=True)]

    def read(self, question: str, passage: str) -> EncodedQuestion:
        """Both as tokens."""
        return encode_question(question, passage, self.tokenizer, self.how)

    def find(self, asked: Sequence[EncodedQuestion]) -> list[ExtractedAnswer]:
        """The same for what has been read before. Windows of like length share batches."""
        rows = [(number, window) for number, each in enumerate(asked) for window in each.windows]
        sizes = [window.end - window.start + len(asked[number].tokens) + SPECIAL_TOKENS_AROUND for number, window in rows]
        tables = [SpanTable(each.passage, self.how.max_answer_tokens) for each in asked]
        for batch in length_buckets(sizes, AT_ONCE, longest_first=True):
            for place, found in zip(batch, self._scores([rows[place] for place in batch], asked), strict=True):
                number, window = rows[place]
                tables[number].add(window, *found)
        return [self._answer(each, table) for each, table in zip(asked, tables, strict=True)]

    @torch.inference_mode()
    def _scores(self, rows: Sequence[tuple[int, PassageWindow]], asked: Sequence[EncodedQuestion]) -> list[tuple[Scores, Scores, float]]:
        """Of each window: scores of starts and of ends over its passage's tokens, and that of "not here"."""
        device = self.model.table.weight.device
        parts = [(asked[n].tokens, asked[n].passage.tokens[window.start : window.end]) for n, window in rows]
        tokens, lengths = pad_sequences([self.frame.wrap(*part) for part in parts])
        begins = [len(question) + 2 for question, _ in parts]
        start, end = span_logits(
            self.model, tokens.to(device), lengths.to(device), torch.tensor(begins, device=device)
        )
        found = torch.stack([start, end], 1).cpu().double().numpy()
        ends = [begin + len(passage) for begin, (_, passage) in zip(begins, parts, strict=True)]
        return [
            (row[0, begin:end], row[1, begin:end], float(row[:, 0].sum()))
            for row, begin, end in zip(found, begins, ends, strict=True)
        ]

    def _answer(self, asked: EncodedQuestion, table: SpanTable) -> ExtractedAnswer:
        spans, nothing = table.best(self.top, may_fail=self.how.threshold is not None)
        return ExtractedAnswer(asked.question, spans, self.how.threshold, nothing)
