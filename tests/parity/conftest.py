"""What the tests against other people's code share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def quiet_transformers() -> None:
    """No progress bars, no advice: a test says what it has to say by passing or failing."""
    from transformers import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
