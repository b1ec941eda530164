"""The progress of a run: step, position in the data, best score and loss history."""

from __future__ import annotations

from dataclasses import dataclass, field

from heedful.training.recipe import TrainingRecipe


@dataclass
class RunProgress:
    """Everything a checkpoint stores besides tensors."""

    step: int = 0
    epoch: int = 0
    batch_index: int = 0
    best_score: float = -float("inf")
    best_step: int = 0
    evaluations_since_best: int = 0
    tokens: int = 0
    window_loss: float = 0.0
    """Sum over `window_labels`, since the last report."""
    window_labels: int = 0
    skipped: int = 0
    """Steps skipped because their loss or gradient was not finite."""
    skipped_in_a_row: int = 0
    history: list[dict[str, int | float]] = field(default_factory=list)


def is_finished(recipe: TrainingRecipe, progress: RunProgress) -> bool:
    """Whether all steps are done, or early stopping applies."""
    return progress.step >= recipe.steps or 0 < recipe.patience <= progress.evaluations_since_best
