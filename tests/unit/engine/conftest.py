"""An engine for small random models of every family."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from heedful.engine.continuous_engine import ContinuousEngine


@pytest.fixture
def engine() -> Iterator[ContinuousEngine]:
    engine = ContinuousEngine()
    yield engine
    engine.close()
