"""Documents as sentences, for telling whether one text follows another: a blank line ends a document (T4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from heedful.data.corpus_readers import Files, read_documents
from heedful.text.sentence_splitter import split_sentences
from heedful.text.tokenizer import Tokenizer


def read_sentences(files: Files, **how: Any) -> Iterator[tuple[str, bool]]:
    """The text sentence by sentence, and whether its document ends there: at a blank line, or with the file or record.

    A sentence has the blanks before it, and the last of a line those after it, blank lines too: together they are the
    text, but for blank lines that open it.
    """
    held, over = "", False
    for text, ends in read_documents(files, **how):
        if not text.strip():
            held, over = held and held + text, True
        else:
            for sentence in _sentences(text):
                if held:
                    yield held, over
                held, over = sentence, False
        if ends and held:
            yield held, True
            held, over = "", False


def _sentences(text: str) -> Iterator[str]:
    before, pieces = "", split_sentences(text)
    for number, (words, gap) in enumerate(pieces, 1):
        last = number == len(pieces)
        if words:
            yield before + words + (gap if last else "")
        before = gap if words else before + gap


def encode_sentences(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The ids of texts that follow each other: one that brings its own blank is given no other."""
    going_on = [text[:1].isspace() for text in texts]
    found = {}
    for way in (False, True):
        these = [text for text, on in zip(texts, going_on, strict=True) if on == way]
        found[way] = iter(tokenizer.encode(these, at_start=not way))
    return [next(found[on]) for on in going_on]
