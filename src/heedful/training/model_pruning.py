"""`heedful.prune`: a smaller, faster model without the heads that validation text needs least."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.data.batching import evenly_split
from heedful.data.line_reader import OnBadLine
from heedful.errors import UsageError
from heedful.evaluation.pruning_effect import PruningEffect, measure_effect
from heedful.files import require_empty
from heedful.inference.trained_model import TrainedModel
from heedful.inspection.census.census_measurement import usable_passes
from heedful.inspection.census.census_result import AblateTo, Census
from heedful.inspection.census.head_pruning import check_prunable, parts_to_prune
from heedful.inspection.census.pruning_choice import (
    heads_within,
    least_important_heads,
    prunable_heads,
    require_prunable,
)
from heedful.syntax import argument
from heedful.training.census_files import DEFAULT_LIMIT, CensusFiles, Example, open_census
from heedful.training.reporting.events import Listener
from heedful.training.request import FilePath

MIN_OTHER_TEXTS = 50
"""Minimum number of texts outside the census for the models to be compared on them."""


@dataclass(frozen=True)
class PruningReport:
    """The parts removed and their effect on scores and speed. `folder` holds the smaller model, if it was saved."""

    pruned: TrainedModel
    parts: tuple[str, ...]
    """Heads, the least important first, and parts removed by name."""
    census: Census
    comparison: PruningEffect
    on_other_texts: bool
    """Whether the comparison is on texts that the census did not use."""
    folder: Path | None

    def to_json(self) -> dict[str, Any]:
        return {
            "parts": list(self.parts),
            "folder": None if self.folder is None else str(self.folder),
            "comparison": {**self.comparison.to_json(), "on_other_texts": self.on_other_texts},
            "census": self.census.to_json(),
        }

    def __str__(self) -> str:
        total = sum(part.head is not None for part in self.census.parts)
        origin = "that the census did not use" if self.on_other_texts else "of the census itself"
        saved = [] if self.folder is None else [f"the smaller model is in {self.folder}"]
        heads = [part for part in self.parts if ".head." in part]
        others = [part for part in self.parts if ".head." not in part]
        lines = [f"{len(heads)} of {total} heads pruned: {', '.join(heads)}"] if heads else []
        lines += [f"pruned: {', '.join(others)}"] if others else []
        lines += ["", str(self.comparison)]
        return "\n".join([*lines, f"the texts are those {origin}", *saved])


def prune(
    model: TrainedModel | FilePath,
    *files: FilePath,
    heads: int | None = None,
    until: float | None = None,
    parts: Sequence[str] = (),
    out: FilePath | None = None,
    limit: int | None = DEFAULT_LIMIT,
    columns: str | Sequence[str | int] = (),
    on_bad_line: OnBadLine = "fail",
    device: str = "auto",
    show_progress: bool | None = None,
    listeners: Sequence[Listener] = (),
) -> PruningReport:
    """Remove the heads that validation files need least: `heedful.prune("translate-1", "valid.tsv", heads=8)`.

    `heads`: their number; or `until`: the largest rise of the loss, as a share (0.01: 1%). `parts`: heads,
    attentions and feed-forward networks to remove by name. `out`: the folder to write the smaller model to. The mean
    values of removed heads stay, as part of the biases. Files are read as for `census`.
    """
    _check_amounts(heads, until, parts)
    if out is not None:
        require_empty(Path(out))
    opened = open_census(
        model, files, columns=columns, on_bad_line=on_bad_line, device=device, show_progress=show_progress,
        listeners=listeners,
    )  # fmt: skip
    by_name = parts_to_prune(opened.trained.model, parts)
    named = [*by_name.sublayers, *(f"{name}.head.{head}" for name, group in by_name.heads.items() for head in group)]
    if heads is not None or until is not None:
        check_prunable(opened.trained.model.config)
        require_prunable(opened.trained.short_name, prunable_heads(opened.trained.model, named), heads)
    chosen, others = _split(opened.examples, limit)
    trained, to = _with_means(opened, chosen)
    census = trained.census(
        chosen, to=(to,), state=opened.state_file("prune", to, limit), start_progress=opened.start_progress
    )
    names = [] if heads is None and until is None else least_important_heads(census, heads, without=named)
    if until is not None:
        least = census.part(names[0]).changes[to].loss.value / census.loss.value if names else 0.0
        passes, _ = usable_passes(trained.scored_passes, chosen, None)
        with opened.start_progress("choosing heads", len(names).bit_length()) as progress:
            names = heads_within(trained, passes, names, until, to, progress)
        if not names:
            raise UsageError(
                f"without its least important head the loss rises by {least:.2%}, more than {until:.2%}; allow more"
            )
    names = [*names, *named]
    pruned = trained.prune(names)
    with opened.start_progress("comparing models", 1) as progress:
        comparison = measure_effect(trained, pruned, _readable(trained, others or chosen))
        progress(1)
    folder = None if out is None else pruned.save(Path(out))
    return PruningReport(pruned, tuple(names), census, comparison, bool(others), folder)


def _check_amounts(heads: int | None, until: float | None, parts: Sequence[str]) -> None:
    if sum(value is not None for value in (heads, until, parts or None)) != 1 and (until is not None or heads is None):
        raise UsageError(
            f"say what to prune: {argument('heads')}, {argument('until')} or {argument('parts')}; only parts and a "
            "number of heads go together"
        )
    if heads is not None and heads < 1:
        raise UsageError(f"the number of heads to prune must be at least 1, got {heads}")
    if until is not None and not 0 < until < 10:
        raise UsageError(f"the loss may rise by a share such as 0.01 (1%), got {until}")


def _split(examples: Sequence[Example], limit: int | None) -> tuple[list[Example], list[Example]]:
    """The texts of the census, evenly spaced, and the others if they are enough to score models on."""
    chosen, others = evenly_split(len(examples), len(examples) if limit is None else limit)
    rest = [examples[index] for index in others] if len(others) >= MIN_OTHER_TEXTS else []
    return [examples[index] for index in chosen], rest


def _with_means(opened: CensusFiles, examples: Sequence[Example]) -> tuple[TrainedModel, AblateTo]:
    """The model with means measured on these texts, and what replaces a removed head, mean or zero.

    A model without biases has no room for means: its heads leave zeros.
    """
    trained = copy(opened.trained)
    if not trained.model.config.bias:
        trained.means = None
        return trained, "zero"
    trained.measure_means(examples, start_progress=opened.start_progress)
    return trained, "mean"


def _readable(trained: TrainedModel, examples: Sequence[Example]) -> list[Example]:
    """The examples that the model reads in one pass."""

    def is_readable(example: Example) -> bool:
        try:
            return any(text_pass.outputs for text_pass in trained.scored_passes(example))
        except UsageError:
            return False

    return [example for example in examples if is_readable(example)]
