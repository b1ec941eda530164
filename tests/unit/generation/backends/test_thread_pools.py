"""Torch's idle OpenMP threads end before CTranslate2 runs, and come back."""

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


def running_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_released_threads_end_and_come_back_with_the_next_work() -> None:
    before, wide = torch.get_num_threads(), torch.ones(512, 512)
    try:
        torch.set_num_threads(3)
        expected = (wide @ wide).sum()
        number = running_threads()
        if not release_torch_threads():
            pytest.skip("another OpenMP than GNU's, or not the main thread")
        assert running_threads() < number
        assert torch.get_num_threads() == 3
        assert (wide @ wide).sum() == expected
        assert running_threads() == number
    finally:
        torch.set_num_threads(before)


def test_threads_are_not_released_from_another_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(release_torch_threads).result() is False


def test_single_text_gets_several_threads_if_the_model_is_large() -> None:
    small, medium, wide = (
        heedful.build("laptop-translator", vocabulary=8_000, width=width, heads=4, layers=3).config
        for width in (32, 256, 512)
    )
    assert weights_per_step(small) < MULTITHREADED_WEIGHTS["float32"] < weights_per_step(medium)
    assert threads_per_text(small, 8, "float32") == threads_per_text(medium, 1, "float32") == 1
    assert threads_per_text(wide, 8, "int8") == 1
    assert threads_per_text(medium, 8, "float32") in (1, 4)  # 4 where torch's threads can be released
    assert threads_per_text(wide, 8, "float32") == 8


def test_weights_per_step_equal_the_models_parameters() -> None:
    for preset in ("laptop-translator", "laptop-writer"):
        model = heedful.build(preset, vocabulary=60, width=32, heads=2, layers=2)
        read = sum(part.weight.numel() for part in model.decoder.modules() if isinstance(part, torch.nn.Linear))
        read -= sum(block.cross.key_value.weight.numel() for block in model.decoder.blocks if block.cross is not None)
        assert weights_per_step(model.config) == read + model.decoder_table.weight.numel()
