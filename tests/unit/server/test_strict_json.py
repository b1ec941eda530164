"""A body's brackets are counted in time that grows with its length only."""

from __future__ import annotations

import time

import pytest

from heedful.server.strict_json import MalformedBodyError, parse_strict


def test_a_string_that_never_ends_is_refused_at_once() -> None:
    body = b"[" * 10_300 + b'"' + b'\\"' * 400_000
    start = time.thread_time()
    with pytest.raises(MalformedBodyError):
        parse_strict(body, 16, 10_000)
    assert time.thread_time() - start < 2
