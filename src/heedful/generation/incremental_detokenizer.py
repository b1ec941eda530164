"""Text as it is written: tokens become characters one after another, never half of one, and never past a stop text."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Sequence

from heedful.text.tokenizer import Tokenizer


def detokenize_stream(tokens: Iterable[int], tokenizer: Tokenizer, *, context: str) -> Iterator[str]:
    """The text of tokens that follow the text `after`, as far as each completes a character."""
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    opening = not context
    for token in tokens:
        text = decoder.decode(tokenizer.token_bytes([token], at_start=opening)[0])
        opening = False
        if text:
            yield text
    if rest := decoder.decode(b"", final=True):
        yield rest


def until_stop_string(pieces: Iterable[str], stop_strings: Sequence[str]) -> Iterator[str]:
    """The same text up to the first stop text. What could be the beginning of one is held back until it is not."""
    held = ""
    for piece in pieces:
        held += piece
        found = [place for stop in stop_strings if (place := held.find(stop)) >= 0]
        if found:
            yield held[: min(found)]
            return
        safe = len(held) - max((_begun(held, stop) for stop in stop_strings), default=0)
        if safe:
            yield held[:safe]
        held = held[safe:]
    if held:
        yield held


def _begun(text: str, stop: str) -> int:
    """How many of its last characters may begin the stop text."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if stop.startswith(text[-size:])), 0)
