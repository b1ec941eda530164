"""Torch's idle threads make way, and come back."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from heedful.generation.threads import release_threads


def running() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads as Linux tells them")
def test_threads_released_end_and_come_back_with_the_next_work() -> None:
    before, wide = torch.get_num_threads(), torch.ones(512, 512)
    try:
        torch.set_num_threads(3)
        expected = (wide @ wide).sum()
        kept = running()
        if not release_threads():
            pytest.skip("another OpenMP than GNU's, or not the main thread")
        assert running() < kept
        assert torch.get_num_threads() == 3
        assert (wide @ wide).sum() == expected
        assert running() == kept
    finally:
        torch.set_num_threads(before)


def test_other_threads_leave_torchs_alone() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(release_threads).result() is False
