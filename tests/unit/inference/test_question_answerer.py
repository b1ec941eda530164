"""Finding answers: the best span of all, in any number of windows, cut out of the passage as it stands."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from heedful import Encoder, TransformerConfig
from heedful.data.passage_windows import Passage, PassageWindow
from heedful.errors import DataError, UsageError
from heedful.inference.question_answerer import QuestionAnswerer, AnsweringSettings, usual_answering
from heedful.inference.span_scores import SpanTable
from heedful.objectives.answer_span_loss import span_logits
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

TEXT = "Ada Lovelace wrote the first program in 1843, for a machine that was never built. She lived in London."
QUESTION = "Who wrote the first program?"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([TEXT, QUESTION], TokenizerConfig(vocabulary=300))


def reader(tokenizer: Tokenizer, **settings: Any) -> Encoder:
    small = {"width": 16, "heads": 2, "layers": 2, "segments": 2, "tasks": ("answer_span",), **settings}
    return Encoder(TransformerConfig(family="encoder", vocabulary=len(tokenizer), **small)).eval()


def how(**changes: Any) -> AnsweringSettings:
    return AnsweringSettings(**{"longest": 200, "stride": 64, "answer": 6, **changes})


def spelt_out(model: Encoder, tokenizer: Tokenizer, asked: AnsweringSettings) -> dict[tuple[int, int], float]:
    """Every span of every window, one by one."""
    passage, question = Passage.encode(TEXT, tokenizer), tokenizer.encode([QUESTION])[0]
    begins, found = len(question) + 2, {}
    for window in asked.split(len(question), len(passage)):
        row = SpecialTokenTemplate().wrap(question, passage.tokens[window.start : window.end])
        with torch.inference_mode():
            start, end = span_logits(model, torch.tensor([row]), torch.tensor([len(row)]), torch.tensor([begins]))
        nothing = float(start[0, 0] + end[0, 0])
        for first in range(window.start, window.end):
            for last in range(first, min(first + asked.max_answer_tokens, window.end)):
                place = begins - window.start
                score = float(start[0, first + place] + end[0, last + place]) - nothing
                if passage.has_text(first) and passage.has_text(last):
                    found[first, last] = max(found.get((first, last), -math.inf), score)
    return found


@pytest.mark.parametrize("longest", [200, 40])
def test_the_answer_is_the_best_span_of_all_windows(tokenizer: Tokenizer, longest: int) -> None:
    model, asked = reader(tokenizer), how(longest=longest, stride=8, threshold=-100.0)
    every = spelt_out(model, tokenizer, asked)
    total = 1 + sum(map(math.exp, every.values()))
    best = sorted(every, key=lambda span: -every[span])[:5]
    (answer,) = QuestionAnswerer(model, tokenizer, asked, top=5).answer([(QUESTION, TEXT)])
    passage = Passage.encode(TEXT, tokenizer)
    assert [(span.start, span.end) for span in answer.spans] == [passage.character_span(*span) for span in best]
    assert [span.score for span in answer.spans] == pytest.approx([every[span] for span in best], abs=1e-4)
    assert [span.probability for span in answer.spans] == pytest.approx(
        [math.exp(every[span]) / total for span in best], rel=1e-3
    )
    assert answer.no_answer_probability == pytest.approx(1 / total, rel=1e-3)


def test_answers_are_the_passages_own_characters_without_blanks_around(tokenizer: Tokenizer) -> None:
    model = reader(tokenizer)
    odd = TEXT.replace(" ", "  \n") + "   "
    for answer in QuestionAnswerer(model, tokenizer, how(), top=50).answer([(QUESTION, odd)]):
        for span in answer.spans:
            assert span.text == odd[span.start : span.end] == span.text.strip() != ""


def test_company_never_changes_an_answer(tokenizer: Tokenizer) -> None:
    answerer = QuestionAnswerer(reader(tokenizer), tokenizer, how(longest=40, stride=8))
    pairs = [(QUESTION, TEXT), ("Where?", "In London."), ("When did she write it?", TEXT[:50])]
    together, alone = answerer.answer(pairs), [answerer.answer([pair])[0] for pair in pairs]
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    assert [a.spans[0].score for a in together] == pytest.approx([a.spans[0].score for a in alone], abs=1e-4)


def test_below_the_threshold_there_is_no_answer_and_without_one_always(tokenizer: Tokenizer) -> None:
    model = reader(tokenizer)
    (free,) = QuestionAnswerer(model, tokenizer, how()).answer([(QUESTION, TEXT)])
    score = free.spans[0].score
    assert free.text
    assert free.no_answer_probability == 0
    (kept,) = QuestionAnswerer(model, tokenizer, how(threshold=score - 0.01)).answer([(QUESTION, TEXT)])
    assert kept.text == free.text
    (none,) = QuestionAnswerer(model, tokenizer, how(threshold=score + 0.01)).answer([(QUESTION, TEXT)])
    assert none.best is None
    assert none.text == ""
    told = none.to_json()
    assert told["answer"] is told["start"] is None
    assert told["score"] == pytest.approx(-score, abs=1e-3)
    assert told["alternatives"][0]["answer"] == free.text


def test_a_span_that_two_windows_hold_has_the_better_of_its_scores(tokenizer: Tokenizer) -> None:
    passage = Passage.encode("one two three four", tokenizer)
    size = len(passage)
    table = SpanTable(passage, 1)
    table.add(PassageWindow(0, size), np.zeros(size), np.zeros(size), nothing=1.0)
    table.add(PassageWindow(1, size), np.full(size - 1, 2.0), np.zeros(size - 1), nothing=0.5)
    assert table.scores[:, 0].tolist() == [-1.0] + [1.5] * (size - 1)


def test_what_cannot_be_read_is_said(tokenizer: Tokenizer) -> None:
    answerer = QuestionAnswerer(reader(tokenizer), tokenizer, how(longest=40))
    for question, passage, told in (("", TEXT, "question is empty"), (QUESTION, " \n", "passage is empty")):
        with pytest.raises(UsageError, match=told):
            answerer.answer([(question, passage)])
    with pytest.raises(DataError, match="leaves no room for its passage in windows of 40"):
        answerer.answer([(QUESTION * 5, TEXT)])
    with pytest.raises(DataError, match="windows are off"):
        QuestionAnswerer(reader(tokenizer), tokenizer, how(longest=40, stride=0)).answer([(QUESTION, TEXT)])
    learned = reader(tokenizer, positions="learned", max_length=64)
    with pytest.raises(UsageError, match="windows of 200 tokens are more than the 64"):
        QuestionAnswerer(learned, tokenizer, how())
    assert usual_answering(learned.config).max_tokens == 64
