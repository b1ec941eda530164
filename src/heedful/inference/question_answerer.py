"""QuestionAnswerer: extract the answer to a question from a passage, with its position and probability (T5).

A passage that is too long for the model is read in windows (`heedful.data.passage_windows`);
`heedful.inference.span_scores` ranks the candidate spans of all windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Unpack, overload

import torch
from pydantic import PositiveInt

from heedful.data.batching import length_buckets
from heedful.data.collate import pad_sequences
from heedful.data.passage_windows import SPECIAL_TOKENS_AROUND, Passage, PassageWindow, PassageWindows
from heedful.data.qa_reader import Question
from heedful.errors import HeedfulError, UsageError
from heedful.generation.streaming import stream_batches
from heedful.inference.finite_outputs import require_finite
from heedful.inference.span_scores import Scores, Span, SpanTable
from heedful.inference.stored_model import StoredSettings
from heedful.inference.text_arguments import text_list
from heedful.inference.trained_model import TrainedModel
from heedful.inspection.text_pass import Output, TextPass
from heedful.interventions.kinds import Intervention, as_interventions
from heedful.model_files import TASK_FILE
from heedful.models.encoder import Encoder
from heedful.objectives.answer_span_loss import span_logits
from heedful.text.token_rows import TokenRow, build_row
from heedful.text.tokenizer import Tokenizer, TokenSpan

DEFAULT_WINDOW, DEFAULT_STRIDE, DEFAULT_ANSWER_TOKENS = 384, 128, 30
"""BERT's settings, for a model without its own."""
BATCH_TOKENS = 8192


class AnsweringSettings(PassageWindows):
    """Window sizes, answer length and threshold of a question answerer: what task.json holds."""

    max_answer_tokens: PositiveInt
    threshold: float | None = None
    """There is no answer if no span scores this much; None: always answer."""

    @classmethod
    def default(cls, config: Any) -> AnsweringSettings:
        """Settings for a model without stored ones, as after an import."""
        window = min(config.max_length, DEFAULT_WINDOW)
        stride = min(DEFAULT_STRIDE, max(1, window // 2))
        return cls(max_tokens=window, stride=stride, max_answer_tokens=DEFAULT_ANSWER_TOKENS)


@dataclass(frozen=True)
class ExtractedAnswer:
    """The answer to a question, with its alternatives."""

    question: str
    spans: tuple[Span, ...]
    """Candidate answers, best first."""
    threshold: float | None = None
    no_answer_probability: float = 0.0
    id: str | None = None

    @property
    def best(self) -> Span | None:
        """The answer; None if the passage does not contain one."""
        first = self.spans[0]
        return None if self.threshold is not None and first.score < self.threshold else first

    @property
    def text(self) -> str:
        """The answer's text; empty if there is none."""
        return "" if self.best is None else self.best.text

    def to_json(self) -> dict[str, Any]:
        """As JSON values. Without an answer `answer` is null, and the first alternative is the rejected span."""
        result: dict[str, Any] = {} if self.id is None else {"id": self.id}
        result["question"] = self.question
        if self.best is None:
            score, probability = round(-self.spans[0].score, 4), round(self.no_answer_probability, 4)
            result |= {"answer": None, "start": None, "end": None, "score": score, "probability": probability}
        else:
            result |= self.best.to_json()
        alternatives = self.spans if self.best is None else self.spans[1:]
        return result | ({"alternatives": [span.to_json() for span in alternatives]} if alternatives else {})


@dataclass(frozen=True)
class EncodedQuestion:
    """A question and its passage as tokens, with the windows in which the passage is read."""

    question: str
    tokens: list[int]
    passage: Passage
    windows: list[PassageWindow]


def encode_question(question: str, passage: str, tokenizer: Tokenizer, windows: PassageWindows) -> EncodedQuestion:
    """Encode a question and its passage; empty or unreadable text is an error."""
    for name, text in (("question", question), ("passage", passage)):
        if not isinstance(text, str):
            raise UsageError(f"the {name} must be a string, got {text!r:.60}")
        if not text.strip():
            raise UsageError(f"the {name} is empty; give it some text")
    tokens, encoded = tokenizer.encode([question])[0], Passage.encode(passage, tokenizer)
    if not any(map(encoded.has_text, range(len(encoded)))):
        raise UsageError(f"no character of the passage {passage!r:.60} is in this model's vocabulary")
    return EncodedQuestion(question, tokens, encoded, windows.split(len(tokens), len(encoded)))


def _question_and_passage(text: str) -> tuple[str, str]:
    question, tab, passage = text.partition("\t")
    if not tab:
        raise UsageError(f"expected a question and its passage, separated by a tab; got {text!r:.60}")
    return question, passage


class QuestionAnswerer(TrainedModel):
    """A model that extracts answers from passages."""

    model: Encoder
    kind = "a question answerer"
    settings_files: ClassVar = {**TrainedModel.settings_files, "settings": (TASK_FILE, AnsweringSettings)}

    def __init__(
        self,
        model: Encoder,
        tokenizers: tuple[Tokenizer, ...] = (),
        folder: Path | None = None,
        *,
        settings: AnsweringSettings | None = None,
        **stored: Unpack[StoredSettings],
    ) -> None:
        super().__init__(model, tokenizers, folder, **stored)
        self.settings = settings or AnsweringSettings.default(model.config)

    # fmt: off
    @overload
    def answer(  # type: ignore[overload-overlap]
        self, question: str, passage: str, *, top: int = 1, threshold: float | None = None, stride: int | None = None,
        interventions: Sequence[Intervention] | None = None,
    ) -> ExtractedAnswer: ...
    @overload
    def answer(
        self, question: Iterable[str], passage: str | Iterable[str], *, top: int = 1, threshold: float | None = None,
        stride: int | None = None, interventions: Sequence[Intervention] | None = None,
    ) -> list[ExtractedAnswer]: ...
    def answer(
        self, question: str | Iterable[str], passage: str | Iterable[str], *, top: int = 1,
        threshold: float | None = None, stride: int | None = None,
        interventions: Sequence[Intervention] | None = None,
    ) -> ExtractedAnswer | list[ExtractedAnswer]:
        """Extract the answer to a question from a passage.

        A list of questions takes one passage for all, or a list with a passage for each. `top`: candidate answers to
        return. `threshold`: score below which there is no answer. `stride`: tokens from one window of a long passage
        to the next; 0 = no windows.
        """
        (questions, single), (passages, shared) = text_list(question), text_list(passage)
        passages = passages * len(questions) if shared else passages
        if len(passages) != len(questions):
            raise UsageError(f"got {len(questions)} questions but {len(passages)} passages; give one passage for each")
        settings = self._settings(top, threshold, stride)
        encoded = [self.encode(*pair, settings) for pair in zip(questions, passages, strict=True)]
        results = self._extract_intervened(encoded, settings, top, as_interventions(interventions))
        return results[0] if single else results
    # fmt: on

    def _extract_intervened(
        self,
        questions: Sequence[EncodedQuestion],
        settings: AnsweringSettings,
        top: int,
        interventions: tuple[Intervention, ...] | None,
    ) -> list[ExtractedAnswer]:
        if any(change.depends_on_text for change in interventions or ()) and any(len(q.windows) > 1 for q in questions):
            raise UsageError(
                "a passage is read in several windows, and an intervention names its words or tokens; "
                "pass stride=0, or a shorter passage"
            )

        extract = partial(self.extract, settings=settings, top=top)
        return list(self.intervened(extract, questions, interventions, lambda q: f"{q.question}\t{q.passage.text}"))

    def text_pass(
        self, text: str, target: str | None = None, *, interventions: Sequence[Intervention] | None = None
    ) -> TextPass:
        """The pass over a question and its passage, separated by a tab; the output is the answer span.

        `target`: an answer that occurs in the passage; without one, the best answer.
        """
        question, passage = _question_and_passage(text)
        row = self.input_row(text)
        start = row.ids.index(self.template.end) + 1
        offset = len(question) + 1
        if target is None:
            best = self.answer(question, passage, stride=0, interventions=interventions).spans[0]
            first, last = best.start, best.end
        elif (first := passage.find(target)) >= 0 and target:
            last = first + len(target)
        else:
            raise UsageError(f"the answer {target!r:.60} does not stand in the passage")
        covered = [
            position
            for position, span in enumerate(row.spans)
            if position >= start and span is not None and span[0] < last + offset and first + offset < span[1]
        ]
        outputs = [Output(side, token, row.pieces[token]) for side, token in enumerate((covered[0], covered[-1]))]
        return TextPass("answer_span", row, tuple(outputs), passage_start=start)

    @property
    def occluding_token(self) -> int:
        return self.template.mask

    def label_texts(self, text_pass: TextPass, labels: Sequence[int]) -> list[str]:
        """The tokens where an answer may start or end."""
        return [text_pass.inputs.pieces[label] for label in labels]

    def input_row(self, text: str) -> TokenRow:
        """The tokens of a question and its passage, separated by a tab, with the special tokens around them."""
        question, passage = _question_and_passage(text)
        encoded = self.encode(question, passage)
        if len(encoded.windows) > 1:
            raise UsageError(f"the passage is read in {len(encoded.windows)} windows; look at a shorter one")
        offset = len(question) + 1
        spans = [TokenSpan(s.token, s.start + offset, s.end + offset) for s in self.tokenizer.spans(passage)]
        tokens = self.template.wrap(self.tokenizer.spans(question), spans)
        return build_row(text, tokens, self.tokenizer, "words")

    def iter_answer(
        self,
        questions: Iterable[Question],
        *,
        on_error: Callable[[Question, HeedfulError], object],
        top: int = 1,
        threshold: float | None = None,
        stride: int | None = None,
        interventions: Sequence[Intervention] | None = None,
    ) -> Iterator[ExtractedAnswer]:
        """Answer a stream of questions lazily and in order; `on_error` is called for one that cannot be read."""
        settings, checked = self._settings(top, threshold, stride), as_interventions(interventions)

        def answer_batch(batch: Sequence[Question]) -> Iterator[ExtractedAnswer]:
            encoded: list[tuple[str, EncodedQuestion]] = []
            for question in batch:
                try:
                    encoded.append((question.id, self.encode(question.question, question.passage, settings)))
                except HeedfulError as error:
                    on_error(question, error)
            results = self._extract_intervened([question for _, question in encoded], settings, top, checked)
            return (replace(result, id=name) for (name, _), result in zip(encoded, results, strict=True))

        return (result for batch in stream_batches(questions) for result in answer_batch(batch))

    def _settings(self, top: int, threshold: float | None, stride: int | None) -> AnsweringSettings:
        if top < 1:
            raise UsageError(f"top must be at least 1, got {top}")
        changes = {"threshold": threshold, "stride": stride}
        settings: AnsweringSettings = self.settings.with_changes(
            **{name: value for name, value in changes.items() if value is not None}
        )
        config = self.model.config
        if config.has_position_table and settings.max_tokens > config.max_length:
            raise UsageError(
                f"windows of {settings.max_tokens} tokens exceed this model's maximum of {config.max_length}"
            )
        return settings

    def encode(self, question: str, passage: str, settings: AnsweringSettings | None = None) -> EncodedQuestion:
        return encode_question(question, passage, self.tokenizer, settings or self.settings)

    def extract(
        self, questions: Sequence[EncodedQuestion], settings: AnsweringSettings | None = None, *, top: int = 1
    ) -> list[ExtractedAnswer]:
        """Answer questions that are encoded already. Windows of similar length share a batch."""
        settings = settings or self.settings
        rows = [(index, window) for index, question in enumerate(questions) for window in question.windows]
        sizes = [
            window.end - window.start + len(questions[index].tokens) + SPECIAL_TOKENS_AROUND for index, window in rows
        ]
        tables = [SpanTable(question.passage, settings.max_answer_tokens) for question in questions]
        for bucket in length_buckets(sizes, BATCH_TOKENS, longest_first=True):
            batch = [rows[row] for row in bucket]
            scores = self._window_scores([(questions[index], window) for index, window in batch])
            for (index, window), window_scores in zip(batch, scores, strict=True):
                tables[index].add(window, *window_scores)
        results = []
        for question, table in zip(questions, tables, strict=True):
            spans, no_answer = table.best(top, may_be_unanswerable=settings.threshold is not None)
            results.append(ExtractedAnswer(question.question, spans, settings.threshold, no_answer))
        return results

    @torch.inference_mode()
    def _window_scores(
        self, batch: Sequence[tuple[EncodedQuestion, PassageWindow]]
    ) -> list[tuple[Scores, Scores, float]]:
        """Start and end scores of each window's passage tokens, and the window's score of "no answer here"."""
        pairs = [(question.tokens, question.passage.tokens[window.start : window.end]) for question, window in batch]
        tokens, lengths = pad_sequences([self.template.wrap(*pair) for pair in pairs], device=self.device)
        firsts = [len(question) + 2 for question, _ in pairs]
        start, end = span_logits(self.model, tokens, lengths, torch.tensor(firsts, device=self.device))
        stacked = torch.stack([start, end], 1)
        require_finite(stacked.masked_fill(stacked.isneginf(), 0.0))  # -inf: outside the passage
        scores = stacked.cpu().double().numpy()
        lasts = [first + len(passage) for first, (_, passage) in zip(firsts, pairs, strict=True)]
        return [
            (row[0, first:last], row[1, first:last], float(row[:, 0].sum()))
            for row, first, last in zip(scores, firsts, lasts, strict=True)
        ]
