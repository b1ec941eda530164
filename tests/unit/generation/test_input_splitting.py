"""Long texts are read to a model as it was trained to read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heedful.errors import CheckpointError
from heedful.generation.input_splitting import FILE, InputSplitting, default_input_splitting
from heedful.models.presets import preset
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

TEXT = "One two. Three <a title='A. B'>four</a> five. Six."


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([TEXT], TokenizerConfig(kind="byte_bpe", vocabulary=280))


def test_a_model_of_single_sentences_reads_single_sentences(tokenizer: Tokenizer) -> None:
    texts = ["One sentence."] * 199 + ["Two. Sentences."]
    reading = InputSplitting.measure(np.array([5] * 99 + [40]), texts, preset("laptop-translator"))
    assert reading == InputSplitting(max_tokens=60, multi_sentence_share=0.005)
    assert [piece.text for piece in reading.split(TEXT, tokenizer)] == [
        "One two.",
        "Three <a title='A. B'>four</a> five.",
        "Six.",
    ]


def test_what_was_seen_in_training_is_read_whole(tokenizer: Tokenizer) -> None:
    texts = ["9 stycznia 1923"] * 29 + ["вт, 10 дек. 2013 г."]
    reading = InputSplitting.measure(np.array([30] * 30), texts, preset("laptop-translator"))
    assert [piece.text for piece in reading.split(texts[-1], tokenizer)] == [texts[-1]]


def test_a_model_of_paragraphs_reads_as_much_as_it_can(tokenizer: Tokenizer) -> None:
    reading = InputSplitting.measure(
        np.array([50] * 9), ["Two. Sentences."], preset("laptop-translator", max_length=51)
    )
    assert reading.max_tokens == 50
    assert len(reading.split(TEXT, tokenizer)) == 1
    for piece in reading.split(TEXT * 20, tokenizer):
        assert len(tokenizer.encode([piece.text])[0]) <= 50


def test_of_a_model_nothing_is_known_of_only_what_does_not_fit_is_cut(tokenizer: Tokenizer) -> None:
    for name in ("laptop-translator", "recurrent-translator"):
        assert len(default_input_splitting(preset(name)).split(TEXT, tokenizer)) == 1
        assert len(default_input_splitting(preset(name)).split(TEXT * 200, tokenizer)) > 1


def test_it_is_stored_beside_the_model(tmp_path: Path) -> None:
    assert InputSplitting.read_json(tmp_path / FILE) is None
    reading = InputSplitting(max_tokens=7, multi_sentence_share=0.5)
    (tmp_path / FILE).write_text(reading.model_dump_json())
    assert InputSplitting.read_json(tmp_path / FILE) == reading
    (tmp_path / FILE).write_text('{"longest": -1}')
    with pytest.raises(CheckpointError, match=r"reading\.json is damaged"):
        InputSplitting.read_json(tmp_path / FILE)
