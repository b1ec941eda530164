"""Files that the fault tests damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.data.dates_corpus import write_dates


@pytest.fixture(scope="session")
def dates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dates(tmp_path_factory.mktemp("dates"), train=400, valid=20, test=20)
