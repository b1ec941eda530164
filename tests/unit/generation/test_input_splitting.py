"""Input splitting: long texts are split as the model's training data was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heedful.errors import CheckpointError
from heedful.generation.input_splitting import InputSplitting, default_input_splitting
from heedful.models.presets import preset
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

TEXT = "One two. Three <a title='A. B'>four</a> five. Six."


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([TEXT], TokenizerConfig(kind="byte_bpe", vocabulary=280))


def test_model_trained_on_single_sentences_reads_single_sentences(tokenizer: Tokenizer) -> None:
    texts = ["One sentence."] * 199 + ["Two. Sentences."]
    splitting = InputSplitting.measure(np.array([5] * 99 + [40]), texts, preset("laptop-translator"))
    assert splitting == InputSplitting(max_tokens=60, multi_sentence_share=0.005)
    assert [segment.text for segment in splitting.split(TEXT, tokenizer)] == [
        "One two.",
        "Three <a title='A. B'>four</a> five.",
        "Six.",
    ]


def test_several_sentences_seen_in_training_are_not_split(tokenizer: Tokenizer) -> None:
    texts = ["9 stycznia 1923"] * 29 + ["вт, 10 дек. 2013 г."]
    splitting = InputSplitting.measure(np.array([30] * 30), texts, preset("laptop-translator"))
    assert [segment.text for segment in splitting.split(texts[-1], tokenizer)] == [texts[-1]]


def test_model_trained_on_paragraphs_reads_up_to_its_maximum(tokenizer: Tokenizer) -> None:
    config = preset("laptop-translator", max_length=51)
    splitting = InputSplitting.measure(np.array([50] * 9), ["Two. Sentences."], config)
    assert splitting.max_tokens == 50
    assert len(splitting.split(TEXT, tokenizer)) == 1
    for segment in splitting.split(TEXT * 20, tokenizer):
        assert len(tokenizer.encode([segment.text])[0]) <= 50


def test_without_statistics_only_texts_that_do_not_fit_are_split(tokenizer: Tokenizer) -> None:
    for name in ("laptop-translator", "recurrent-translator"):
        assert len(default_input_splitting(preset(name)).split(TEXT, tokenizer)) == 1
        assert len(default_input_splitting(preset(name)).split(TEXT * 200, tokenizer)) > 1


def test_statistics_round_trip_and_damage_is_reported() -> None:
    splitting, file = InputSplitting(max_tokens=7, multi_sentence_share=0.5), Path("input_splitting.json")
    assert InputSplitting.from_json(splitting.to_file().encode(), file) == splitting
    with pytest.raises(CheckpointError, match=r"input_splitting\.json is damaged"):
        InputSplitting.from_json(b'{"max_tokens": -1}', file)
