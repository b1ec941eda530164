"""The resume check reports identical and differing tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from heedful.training.checkpoint.format import Checkpoint, write_checkpoint
from heedful.training.resume_check import compare


def trained(folder: Path, weight: float) -> Path:
    tensors = {"model.w": torch.tensor([1.0, weight]), "optimizer.w.step": torch.tensor(30.0)}
    write_checkpoint(folder / "training", Checkpoint("run", 30, tensors, {}), keep=1)
    return folder


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (2.0, "all 2 tensors of weights, optimizer and averages are identical, bit for bit"),
        (2.5, "NOT identical: 1 of 2 tensors differ, weights by 0.5"),
    ],
)
def test_differences_are_measured_and_reported(tmp_path: Path, weight: float, message: str) -> None:
    check = compare(trained(tmp_path / "a", 2.0), trained(tmp_path / "b", weight), "a machine", ("scatter",))
    text = str(check)
    assert message in text
    assert "not deterministic there: scatter" in text
    assert (check.uninterrupted == check.resumed) == (weight == 2.0)
    assert check.uninterrupted in text
    assert check.resumed in text
