"""What every test starts from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

# Tests run side by side, and matrices this small are multiplied sooner than a second thread wakes up.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def corpora() -> Path:
    """The folder of real corpora; tests that need one say so by asking for this."""
    folder = os.environ.get("HEEDFUL_DATA")
    if not folder:
        pytest.skip("HEEDFUL_DATA is not set: no corpora here")
    return Path(folder)
