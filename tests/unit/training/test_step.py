"""One training step."""

from __future__ import annotations

import torch

from heedful.training.step import dropout_seed, seed_dropout


def test_dropout_on_a_cpu_depends_on_the_seed_and_on_the_step() -> None:
    masks = set()
    for seed in (1, 2, 3, 1 << 40):
        for step in range(3):
            seed_dropout(dropout_seed(seed, step) % (1 << 64), torch.device("cpu"))
            masks.add(tuple(torch.rand(4).tolist()))
    assert len(masks) == 12
