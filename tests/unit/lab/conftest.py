"""The lab's tests use only built-in data, whatever corpora are available."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from heedful.lab import toy_tasks


@pytest.fixture(autouse=True, scope="package")
def _shipped_data() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HEEDFUL_DATA", raising=False)
        toy_tasks.running_text.cache_clear()
        yield
