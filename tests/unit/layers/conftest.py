"""Fixtures of the layer tests."""

from __future__ import annotations

import jaxtyping
import pytest


@pytest.fixture
def types_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch shape checks off, so that a wrong type raises the library's own error."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
