"""The proof of resuming says what was found, good or bad."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from heedful.training.checkpoint.format import Checkpoint, write_checkpoint
from heedful.training.resume_check import compare


def walked(folder: Path, weight: float) -> Path:
    tensors = {"model.w": torch.tensor([1.0, weight]), "optimizer.w.step": torch.tensor(30.0)}
    write_checkpoint(folder / "training", Checkpoint("run", 30, tensors, {}), keep=1)
    return folder


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (2.0, "all 2 tensors of weights, optimizer and averages are the same, bit for bit"),
        (2.5, "NOT identical: 1 of 2 tensors differ, weights by 0.5"),
    ],
)
def test_a_difference_is_measured_and_told(tmp_path: Path, weight: float, words: str) -> None:
    proof = compare(walked(tmp_path / "a", 2.0), walked(tmp_path / "b", weight), "a machine", ("scatter",))
    said = str(proof)
    assert words in said
    assert "without a deterministic form there: scatter" in said
    assert (proof.straight == proof.broken) == (weight == 2.0)
    assert proof.straight in said
    assert proof.broken in said
