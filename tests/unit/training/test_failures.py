"""Failures of the machine become one-line errors; other errors pass unchanged."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from heedful.errors import HeedfulError, OutOfMemoryError, StoppedError
from heedful.training.failures import readable_failures, with_smaller_batch
from heedful.training.run_catalog import RECIPE_FILE


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left", "run/card.md"),
            "run/card.md: cannot write: No space left",
        ),
        (OSError(errno.EROFS, "Read-only file system", "run/lock"), "run/lock: Read-only file system"),
        (OSError(errno.EIO, "Input/output error"), "run: Input/output error"),
        (RuntimeError("can't start new thread"), "out of memory with training.batch_tokens=64"),
    ],
)
def test_a_failure_is_one_line(error: Exception, message: str) -> None:
    with pytest.raises(HeedfulError) as raised, readable_failures({"training": {"batch_tokens": 64}}, Path("run")):
        raise error
    assert str(raised.value).startswith(message)
    assert raised.value.exit_code == 1


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(RuntimeError, match="a bug"), readable_failures({}, Path("run")):
        raise RuntimeError("a bug")


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_an_interruption_says_how_to_resume_if_the_run_has_started(
    stop: BaseException, code: int, tmp_path: Path
) -> None:
    with pytest.raises(StoppedError, match=r"^stopped before the run began$"), readable_failures({}):
        raise stop
    with pytest.raises(StoppedError, match=r"^stopped before the run began$"), readable_failures({}, tmp_path):
        raise stop
    (tmp_path / RECIPE_FILE).touch()
    with (
        pytest.raises(StoppedError, match=r'resume with: heedful\.train\(resume="') as raised,
        readable_failures({}, tmp_path),
    ):
        raise stop
    assert raised.value.exit_code == code


def test_batches_are_halved_down_to_the_minimum() -> None:
    halved = with_smaller_batch({"training": {}}, OutOfMemoryError("", 64, 3))
    assert halved["training"] == {"batch_tokens": 32, "accumulate": 6}
    with pytest.raises(OutOfMemoryError, match="smaller batches would not help"):
        with_smaller_batch(halved, OutOfMemoryError("", 32, 6))
