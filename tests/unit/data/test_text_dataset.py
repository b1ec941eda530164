"""Documents as sentences: no character is lost, and a blank line ends a document."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.data.corpus_readers import read_sentences
from heedful.data.text_dataset import encode_sentences
from heedful.text.tokenizer import Tokenizer, TokenizerConfig


def test_sentences_join_to_the_text_and_documents_end_at_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    text = "One cat sat. Two cats sat.\nThree.\n\n \nA second text! It goes on.\nAnd on\n"
    file.write_text("\n" + text)
    sentences = list(read_sentences([file]))
    assert "".join(sentence for sentence, _ in sentences) == text
    assert [sentence.strip() for sentence, _ in sentences] == [
        "One cat sat.",
        "Two cats sat.",
        "Three.",
        "A second text!",
        "It goes on.",
        "And on",
    ]
    assert [ends for _, ends in sentences] == [False, False, True, False, False, True]


def test_every_file_and_record_ends_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One.\nTwo.\n")
    (tmp_path / "b.jsonl").write_text('{"text": "Three. Four."}\n{"text": "Five."}\n')
    sentences = list(read_sentences([tmp_path / "a.txt", tmp_path / "b.jsonl"]))
    assert [sentence.strip() for sentence, ends in sentences if ends] == ["Two.", "Four.", "Five."]


@pytest.mark.parametrize("kind", ["byte_bpe", "words"])
def test_sentences_encode_to_the_tokens_of_the_joined_text(kind: str) -> None:
    line = "One cat sat. Two cats sat. Three!"
    tokenizer = Tokenizer.train([line] * 3, TokenizerConfig(kind=kind, vocabulary=300))
    apart = encode_sentences(["One cat sat.", " Two cats sat.", " Three!"], tokenizer)
    assert [[token for ids in apart for token in ids]] == tokenizer.encode([line])
