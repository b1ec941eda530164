"""QuestionAnswerer: the best span over all windows, as the passage's own characters."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful import Encoder, QuestionAnswerer, TransformerConfig
from heedful.data.passage_windows import Passage, PassageWindow
from heedful.data.qa_reader import Question
from heedful.errors import DataError, UsageError
from heedful.inference.question_answerer import AnsweringSettings
from heedful.inference.span_scores import SpanTable
from heedful.objectives.answer_span_loss import span_logits
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

TEXT = "Ada Lovelace wrote the first program in 1843, for a machine that was never built. She lived in London."
QUESTION = "Who wrote the first program?"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([TEXT, QUESTION], TokenizerConfig(vocabulary=300))


def make_model(tokenizer: Tokenizer, **settings: Any) -> Encoder:
    small = {"width": 16, "heads": 2, "layers": 2, "segments": 2, "tasks": ("answer_span",), **settings}
    return Encoder(TransformerConfig(family="encoder", vocabulary=len(tokenizer), **small)).eval()


def make_settings(**changes: Any) -> AnsweringSettings:
    return AnsweringSettings(**{"max_tokens": 200, "stride": 64, "max_answer_tokens": 6, **changes})


def make_answerer(tokenizer: Tokenizer, **changes: Any) -> QuestionAnswerer:
    return QuestionAnswerer(make_model(tokenizer), (tokenizer,), settings=make_settings(**changes))


def all_span_scores(model: Encoder, tokenizer: Tokenizer, settings: AnsweringSettings) -> dict[tuple[int, int], float]:
    """The score of every span of every window, computed separately."""
    passage, question = Passage.encode(TEXT, tokenizer), tokenizer.encode([QUESTION])[0]
    first_position, scores = len(question) + 2, {}
    for window in settings.split(len(question), len(passage)):
        row = SpecialTokenTemplate().wrap(question, passage.tokens[window.start : window.end])
        with torch.inference_mode():
            start, end = span_logits(
                model, torch.tensor([row]), torch.tensor([len(row)]), torch.tensor([first_position])
            )
        no_answer = float(start[0, 0] + end[0, 0])
        offset = first_position - window.start
        for first in range(window.start, window.end):
            for last in range(first, min(first + settings.max_answer_tokens, window.end)):
                score = float(start[0, first + offset] + end[0, last + offset]) - no_answer
                if passage.has_text(first) and passage.has_text(last):
                    scores[first, last] = max(scores.get((first, last), -math.inf), score)
    return scores


@pytest.mark.parametrize("max_tokens", [200, 40])
def test_the_answer_is_the_best_span_of_all_windows(tokenizer: Tokenizer, max_tokens: int) -> None:
    answerer = make_answerer(tokenizer, max_tokens=max_tokens, stride=8, threshold=-100.0)
    scores = all_span_scores(answerer.model, tokenizer, answerer.settings)
    total = 1 + sum(map(math.exp, scores.values()))
    best = sorted(scores, key=lambda span: -scores[span])[:5]
    answer = answerer.answer(QUESTION, TEXT, top=5)
    passage = Passage.encode(TEXT, tokenizer)
    assert [(span.start, span.end) for span in answer.spans] == [passage.character_span(*span) for span in best]
    assert [span.score for span in answer.spans] == pytest.approx([scores[span] for span in best], abs=1e-4)
    assert [span.probability for span in answer.spans] == pytest.approx(
        [math.exp(scores[span]) / total for span in best], rel=1e-3
    )
    assert answer.no_answer_probability == pytest.approx(1 / total, rel=1e-3)


def test_answers_are_the_passages_characters_without_surrounding_whitespace(tokenizer: Tokenizer) -> None:
    passage = TEXT.replace(" ", "  \n") + "   "
    for span in make_answerer(tokenizer).answer(QUESTION, passage, top=50).spans:
        assert span.text == passage[span.start : span.end] == span.text.strip() != ""


def test_the_batch_does_not_change_answers(tokenizer: Tokenizer) -> None:
    answerer = make_answerer(tokenizer, max_tokens=40, stride=8)
    pairs = [(QUESTION, TEXT), ("Where?", "In London."), ("When did she write it?", TEXT[:50])]
    batched = answerer.answer([question for question, _ in pairs], [passage for _, passage in pairs])
    single = [answerer.answer(*pair) for pair in pairs]
    questions = [
        Question(passage, question, (), str(line), Path("q.tsv"), line)
        for line, (question, passage) in enumerate(pairs)
    ]
    streamed = list(answerer.iter_answer(iter(questions), on_error=lambda question, error: None))
    assert [answer.text for answer in batched] == [answer.text for answer in single]
    assert [answer.text for answer in streamed] == [answer.text for answer in single]
    assert [answer.id for answer in streamed] == ["0", "1", "2"]
    assert [a.spans[0].score for a in batched] == pytest.approx([a.spans[0].score for a in single], abs=1e-4)


def test_one_passage_serves_many_questions_and_counts_must_match(tokenizer: Tokenizer) -> None:
    answerer = make_answerer(tokenizer)
    assert len(answerer.answer([QUESTION, "Where?"], TEXT)) == 2
    with pytest.raises(UsageError, match="got 2 questions but 1 passages"):
        answerer.answer([QUESTION, "Where?"], [TEXT])


def test_there_is_no_answer_below_the_threshold_and_always_one_without(tokenizer: Tokenizer) -> None:
    model = make_model(tokenizer)

    def answerer(**changes: Any) -> QuestionAnswerer:
        return QuestionAnswerer(model, (tokenizer,), settings=make_settings(**changes))

    always = answerer().answer(QUESTION, TEXT)
    score = always.spans[0].score
    assert always.text
    assert always.no_answer_probability == 0
    assert answerer(threshold=score - 0.01).answer(QUESTION, TEXT).text == always.text
    rejected = answerer(threshold=score + 0.01).answer(QUESTION, TEXT)
    assert rejected.best is None
    assert rejected.text == ""
    result = rejected.to_json()
    assert result["answer"] is result["start"] is None
    assert result["score"] == pytest.approx(-score, abs=1e-3)
    assert result["alternatives"][0]["answer"] == always.text


def test_a_span_in_two_windows_has_the_better_of_its_scores(tokenizer: Tokenizer) -> None:
    passage = Passage.encode("one two three four", tokenizer)
    size = len(passage)
    table = SpanTable(passage, 1)
    table.add(PassageWindow(0, size), np.zeros(size), np.zeros(size), no_answer=1.0)
    table.add(PassageWindow(1, size), np.full(size - 1, 2.0), np.zeros(size - 1), no_answer=0.5)
    assert table.scores[:, 0].tolist() == [-1.0] + [1.5] * (size - 1)


def test_unreadable_input_is_an_error(tokenizer: Tokenizer) -> None:
    answerer = make_answerer(tokenizer, max_tokens=40)
    for question, passage, message in (("", TEXT, "question is empty"), (QUESTION, " \n", "passage is empty")):
        with pytest.raises(UsageError, match=message):
            answerer.answer(question, passage)
    with pytest.raises(DataError, match="leaves no room for its passage in windows of 40"):
        answerer.answer(QUESTION * 5, TEXT)
    with pytest.raises(DataError, match="windows are off"):
        answerer.answer(QUESTION, TEXT, stride=0)
    with pytest.raises(UsageError, match="top must be at least 1, got 0"):
        answerer.answer(QUESTION, TEXT, top=0)
    learned = make_model(tokenizer, positions="learned", max_length=64)
    with pytest.raises(UsageError, match="windows of 200 tokens exceed this model's maximum of 64"):
        QuestionAnswerer(learned, (tokenizer,), settings=make_settings()).answer(QUESTION, TEXT)
    assert QuestionAnswerer(learned, (tokenizer,)).settings.max_tokens == 64
