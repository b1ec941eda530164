"""Torch's idle threads make way, and come back."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import heedful
from heedful.generation.backends.thread_pools import (
    MULTITHREADED_WEIGHTS,
    release_torch_threads,
    threads_per_text,
    weights_per_step,
)


def running() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads as Linux tells them")
def test_threads_released_end_and_come_back_with_the_next_work() -> None:
    before, wide = torch.get_num_threads(), torch.ones(512, 512)
    try:
        torch.set_num_threads(3)
        expected = (wide @ wide).sum()
        kept = running()
        if not release_torch_threads():
            pytest.skip("another OpenMP than GNU's, or not the main thread")
        assert running() < kept
        assert torch.get_num_threads() == 3
        assert (wide @ wide).sum() == expected
        assert running() == kept
    finally:
        torch.set_num_threads(before)


def test_other_threads_leave_torchs_alone() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(release_torch_threads).result() is False


def test_a_single_text_gets_several_threads_if_the_model_is_worth_it() -> None:
    small, middling, wide = (
        heedful.build("laptop-translator", vocabulary=8_000, width=width, heads=4, layers=3).config
        for width in (32, 256, 512)
    )
    assert weights_per_step(small) < MULTITHREADED_WEIGHTS["float32"] < weights_per_step(middling)
    assert (
        threads_per_text(small, 8, "float32")
        == threads_per_text(middling, 1, "float32")
        == threads_per_text(wide, 8, "int8")
        == 1
    )
    assert threads_per_text(middling, 8, "float32") in (1, 4)  # the latter where torch's threads make way
    assert threads_per_text(wide, 8, "float32") == 8


def test_the_weights_a_step_reads_are_counted_from_the_design() -> None:
    for preset in ("laptop-translator", "laptop-writer"):
        model = heedful.build(preset, vocabulary=60, width=32, heads=2, layers=2)
        read = sum(part.weight.numel() for part in model.decoder.modules() if isinstance(part, torch.nn.Linear))
        read -= sum(block.cross.key_value.weight.numel() for block in model.decoder.blocks if block.cross is not None)
        assert weights_per_step(model.config) == read + model.output_table.numel()
