"""What a machine does to a run, in one line each; what is no such thing passes as it is."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from heedful.errors import HeedfulError, OutOfMemoryError, StoppedError
from heedful.training.failures import readable_failures, with_smaller_batch
from heedful.training.recipe import RECIPE

GLOO = (
    "[/pytorch/gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:38087. This is typically caused by a crash. GLHF!"
)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left", "run/card.md"),
            "run/card.md: nothing more can be written: No space left",
        ),
        (OSError(errno.EROFS, "Read-only file system", "run/lock"), "run/lock: Read-only file system"),
        (OSError(errno.EIO, "Input/output error"), "run: Input/output error"),
        (RuntimeError("can't start new thread"), "out of memory with training.batch_tokens=64"),
        (RuntimeError(GLOO), "another process of this run is gone: Connection closed by peer [10.0.0.1]:38087. Go on"),
    ],
)
def test_what_gives_out_is_one_line(error: Exception, said: str) -> None:
    with pytest.raises(HeedfulError) as found, readable_failures({"training": {"batch_tokens": 64}}, Path("run")):
        raise error
    assert str(found.value).startswith(said)
    assert found.value.exit_code == 1


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="a bug"), readable_failures({}, Path("run")):
        raise RuntimeError("a bug")


@pytest.mark.parametrize(("asked", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_being_asked_to_stop_says_how_to_go_on_if_there_is_anything_to_go_on_with(
    asked: BaseException, code: int, tmp_path: Path
) -> None:
    with pytest.raises(StoppedError, match=r"^stopped before the run began$"), readable_failures({}):
        raise asked
    with pytest.raises(StoppedError, match=r"^stopped before the run began$"), readable_failures({}, tmp_path):
        raise asked
    (tmp_path / RECIPE).touch()
    with pytest.raises(StoppedError, match="go on with: heedful train --resume") as found, readable_failures({}, tmp_path):
        raise asked
    assert found.value.exit_code == code


def test_batches_are_halved_until_it_can_be_of_no_more_use() -> None:
    halved = with_smaller_batch({"training": {}}, OutOfMemoryError("", 64, 3))
    assert halved["training"] == {"batch_tokens": 32, "accumulate": 6}
    with pytest.raises(OutOfMemoryError, match="not for the size of batches"):
        with_smaller_batch(halved, OutOfMemoryError("", 32, 6))
