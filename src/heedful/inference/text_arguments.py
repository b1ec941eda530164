"""Checks of text arguments: one text or a list of them, targets, streams in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from heedful.errors import UsageError, is_unicode
from heedful.generation.streaming import FIRST_BATCH, LARGEST_BATCH, stream_batches


def text_list(text: object) -> tuple[list[str], bool]:
    """Check that the input is a string or an iterable of strings; return a list, and whether it was one string."""
    if isinstance(text, str):
        return [_string(text)], True
    if not isinstance(text, Iterable) or isinstance(text, bytes | Mapping):
        raise UsageError(f"expected a text or a list of texts, got {text!r:.60}")
    return [_string(value) for value in text], False


def target_list(target: object, texts: Sequence[str], single: bool) -> list[str | None]:
    """A target, or None, for each text: a single text has one, a list of texts a list."""
    targets = target if isinstance(target, list | tuple) and not single else [target] * len(texts)
    if len(targets) != len(texts) or not all(value is None or isinstance(value, str) for value in targets):
        raise UsageError(f"a text takes one target, a list of {len(texts)} texts one for each; got {target!r:.60}")
    if isinstance(target, str) and not single:
        raise UsageError(f"a list of texts takes a list of targets, got one: {target!r:.60}")
    return list(targets)


def text_batches(texts: Iterable[str | None], first: int | None = None) -> Iterator[list[str]]:
    """Group texts into growing batches; `first`: size of the first batch (of a list, by default the largest size)."""
    if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable):
        raise UsageError(f"expected an iterable of texts, got {texts!r:.60}")
    first = first or (LARGEST_BATCH if isinstance(texts, Sequence) else FIRST_BATCH)
    return stream_batches((text if text is None else _string(text) for text in texts), first)


def _string(text: object) -> str:
    if not isinstance(text, str):
        raise UsageError(f"every text must be a string, got {text!r:.60}")
    return require_unicode(text)


def require_unicode(text: str) -> str:
    """The text; UsageError if it cannot be encoded."""
    if not is_unicode(text):
        raise UsageError(f"every text must be valid Unicode, got half a surrogate pair in {text!r:.60}")
    return text
