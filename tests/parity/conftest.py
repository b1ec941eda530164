"""What the tests against other people's code share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session")
def quiet_transformers() -> None:
    """No progress bars, no advice: a test says what it has to say by passing or failing."""
    from transformers import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices this small are multiplied sooner than a second thread wakes up."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
