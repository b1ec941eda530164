"""How the tests of the layers run."""

from __future__ import annotations

import jaxtyping
import pytest


@pytest.fixture
def types_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user runs heedful: a wrong type meets our own error, not the shape checker of the test suite."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
