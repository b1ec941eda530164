"""Streams of texts in and out: growing batches of inputs, and text decoded while tokens are generated."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from heedful.text.tokenizer import Tokenizer

FIRST_BATCH, LARGEST_BATCH = 16, 1024
Text = TypeVar("Text")


def stream_batches(
    texts: Iterable[Text | None], first: int = FIRST_BATCH, largest: int = LARGEST_BATCH
) -> Iterator[list[Text]]:
    """Batches that double in size: the first results of a stream come soon, the rest fast.

    None flushes: the texts before it are yielded at once. If reading the stream fails, the texts read before are
    yielded before the error is raised.
    """
    batch: list[Text] = []
    size, failure = first, None
    try:
        for text in texts:
            if text is not None:
                batch.append(text)
            if batch and (text is None or len(batch) >= size):
                yield batch
                batch, size = [], min(2 * size, largest)
    except Exception as error:
        failure = error
    if batch:
        yield batch
    if failure is not None:
        raise failure


def detokenize_stream(tokens: Iterable[int], tokenizer: Tokenizer, *, context: str) -> Iterator[str]:
    """Incremental detokenization: the text of tokens that follow `context`, never half a character."""
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    at_start = not context
    for token in tokens:
        text = decoder.decode(tokenizer.token_bytes([token], at_start=at_start)[0])
        at_start = False
        if text:
            yield text
    if remainder := decoder.decode(b"", final=True):
        yield remainder


def until_stop_string(pieces: Iterable[str], stop_strings: Sequence[str]) -> Iterator[str]:
    """The text before the first stop string. What may be the beginning of one is held back until it is not."""
    pending = ""
    for piece in pieces:
        pending += piece
        matches = [index for stop in stop_strings if (index := pending.find(stop)) >= 0]
        if matches:
            yield pending[: min(matches)]
            return
        safe = len(pending) - max((_partial_match(pending, stop) for stop in stop_strings), default=0)
        if safe:
            yield pending[:safe]
        pending = pending[safe:]
    if pending:
        yield pending


def _partial_match(text: str, stop: str) -> int:
    """Length of the longest end of the text that begins the stop string."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if stop.startswith(text[-size:])), 0)
