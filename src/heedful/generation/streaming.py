"""Streaming: batches of growing size from an input stream, and text decoded while tokens are generated."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeVar

from heedful.text.tokenizer import Tokenizer

FIRST_BATCH, LARGEST_BATCH = 16, 1024
FinishReason = Literal["stop", "length"]
"""Why a text ended: END or a stop string, or the token limit."""
Text = TypeVar("Text")


def text_widths(tokens: Sequence[int], tokenizer: Tokenizer, *, context: str) -> list[int]:
    """The number of characters that each token completes in the text after `context`."""
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    first, following = tokenizer.token_bytes(tokens[:1], at_start=not context), tokenizer.token_bytes(tokens[1:])
    return [len(decoder.decode(token)) for token in (*first, *following)]


class StreamEnd(NamedTuple):
    """The end of a stream: the number of tokens generated, END not counted, and the reason."""

    tokens: int
    reason: FinishReason


TextStream = Generator[str, None, StreamEnd]
"""An iterator over pieces of a text while it is generated, which returns how the text ended."""


def stream_batches(
    texts: Iterable[Text | None], first: int = FIRST_BATCH, largest: int = LARGEST_BATCH
) -> Iterator[list[Text]]:
    """Yield batches of doubling size: low latency for the first results of a stream, high throughput later.

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


def stream_text(
    tokens: Iterable[int], tokenizer: Tokenizer, *, context: str, stop_strings: Sequence[str], limit: int
) -> TextStream:
    """The text of at most `limit` tokens that follow `context`, up to a stop string; returns how it ended."""
    generated = characters = 0

    def count_tokens() -> Iterator[int]:
        nonlocal generated
        for token in tokens:
            generated += 1
            yield token

    def count_characters() -> Iterator[str]:
        nonlocal characters
        for piece in detokenize_stream(count_tokens(), tokenizer, context=context):
            characters += len(piece)
            yield piece

    for piece in until_stop_string(count_characters(), stop_strings):
        characters -= len(piece)
        yield piece
    return StreamEnd(generated, "length" if generated >= limit and not characters else "stop")


def until_stop_string(pieces: Iterable[str], stop_strings: Sequence[str]) -> Iterator[str]:
    """Yield the text before the stop string that is complete first, as decoding ends there. A possible beginning of one
    is held back until it is ruled out."""
    pending = ""
    for piece in pieces:
        pending += piece
        matches = [(start + len(stop), start) for stop in stop_strings if (start := pending.find(stop)) >= 0]
        if matches:
            _, start = min(matches)
            yield pending[:start]
            return
        safe = len(pending) - max((_partial_match(pending, stop) for stop in stop_strings), default=0)
        if safe:
            yield pending[:safe]
        pending = pending[safe:]
    if pending:
        yield pending


def _partial_match(text: str, stop: str) -> int:
    """Length of the longest suffix of the text that is a prefix of the stop string."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if stop.startswith(text[-size:])), 0)
