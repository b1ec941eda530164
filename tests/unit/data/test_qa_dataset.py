"""Question datasets: every window is labeled with the tokens of the answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from heedful.data.corpus_doctor import examine
from heedful.data.corpus_files import CorpusFiles
from heedful.data.passage_windows import Passage, PassageWindows
from heedful.data.qa_dataset import prepare_questions, train_question_tokenizer
from heedful.data.qa_reader import read_questions
from heedful.errors import DataError
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.tokenizer import Tokenizer, TokenizerConfig


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))


def question_record(number: int) -> dict[str, str]:
    people = " ".join(f"Number {n} is Mr. {chr(65 + n % 26)}{n}, of course." for n in range(number, number + 12))
    answer = "Mr. F5" if number < 6 else ""
    return {"id": str(number), "passage": people, "question": "Who is number 5?", "answer": answer}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(question_record(number)) + "\n" for number in range(40)))
    return path


@pytest.fixture
def tokenizer(file: Path) -> Tokenizer:
    return train_question_tokenizer(CorpusFiles([file], held_out=0.2), TokenizerConfig(vocabulary=400), 1.0)


def test_every_window_is_labeled_with_the_answer_or_as_without(file: Path, tokenizer: Tokenizer) -> None:
    files = CorpusFiles([file], held_out=0.2)
    data = prepare_questions(files, tokenizer, windows=PassageWindows(max_tokens=60, stride=20))
    frame, labeled = SpecialTokenTemplate.from_tokenizer(tokenizer), 0
    for split in (data.train, data.valid):
        windows, positions = split.sides
        assert len(windows) == len(positions) > split.examples, "these passages take several windows"
        for number in range(len(windows)):
            ids, (passage_start, start, end) = windows[number].tolist(), positions[number].tolist()
            assert len(ids) <= 60
            assert [ids[0], ids[passage_start - 1], ids[-1]] == [frame.start, frame.end, frame.end]
            (text,) = tokenizer.decode([ids[passage_start:-1]])
            assert bool(start) == ("Mr. F5," in text), text
            if start:
                labeled += 1
                assert tokenizer.decode([ids[start : end + 1]])[0].strip() == "Mr. F5"
    assert labeled >= 6, "each answer is complete in at least one window"


def test_no_passage_is_in_both_splits(file: Path, tokenizer: Tokenizer) -> None:
    files = CorpusFiles([file], held_out=0.3)
    data = prepare_questions(files, tokenizer, windows=PassageWindows(max_tokens=80, stride=20))
    train, valid = ({text[1] for text in split.texts} for split in (data.train, data.valid))
    assert not train & valid
    assert len(train) + len(valid) == 40


def test_questions_that_do_not_fit_raise_or_are_dropped_and_counted(file: Path, tokenizer: Tokenizer) -> None:
    files = CorpusFiles([file], held_out=0.2)
    with pytest.raises(DataError, match=r"questions.jsonl:1: question '0': question and passage have \d+ tokens, but"):
        prepare_questions(files, tokenizer, windows=PassageWindows(max_tokens=100, stride=0))
    long = json.loads(file.read_text().splitlines()[0]) | {"question": "Who? " * 60}
    file.write_text(json.dumps(long) + "\n" + file.read_text())
    files = replace(files, on_bad_line="skip")
    data = prepare_questions(files, tokenizer, windows=PassageWindows(max_tokens=60, stride=20))
    assert data.dropped == {"questions that do not fit in windows of 60 tokens": 1}
    assert set(data.first_lines.values()) == {1}


def test_doctor_finds_leaked_passages_and_duplicate_questions(file: Path, tmp_path: Path) -> None:
    lines = file.read_text().splitlines()
    held = tmp_path / "held.jsonl"
    held.write_text("\n".join(lines[:3]) + "\n")
    file.write_text("\n".join([*lines, lines[7]]) + "\n")
    report = examine([file], against=[held])
    assert report.kind == "questions"
    assert (report.count("leak"), report.count("duplicate"), report.lines("duplicate")) == (3, 1, (41,))
    assert report.labels == {"without an answer": 34 + 1, "with an answer": 6}
    assert [side.name for side in report.columns] == ["passage", "question"]


def test_every_squad_answer_round_trips_by_character_span(corpora: Path) -> None:
    rows = list(read_questions([corpora / "squad" / "dev-small.json"]))
    tokenizer = Tokenizer.train((row.passage for row in rows[::5]), TokenizerConfig(vocabulary=2000, lowercase=True))
    passage = Passage("", [], [], [])
    exact = 0
    for row in rows:
        passage = passage if passage.text == row.passage else Passage.encode(row.passage, tokenizer)
        text, start = row.answers[0]
        cut = row.passage[slice(*passage.character_span(*passage.token_span(start, start + len(text))))]
        assert text.strip() in cut
        exact += cut == text
    assert exact >= 0.98 * len(rows), "a few answers are parts of words: 1990 of 1990s"
