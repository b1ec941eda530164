"""The result of a census: how much each part of a model reduces the loss, and what each head attends to.

census = translator.census(pairs)
print(census)                                  # ranked table
census.part("decoder.1.cross.head.3").changes["zero"].loss
census.save("census.png")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from heedful.errors import UsageError, nearest
from heedful.inspection.census.head_roles import HeadRole
from heedful.inspection.census.paired_bootstrap import Interval
from heedful.inspection.result_file import write_result
from heedful.interventions.parts import PartKind

AblateTo = Literal["zero", "mean"]
CensusKind = PartKind | Literal["gate"]


def ablation_choices(to: AblateTo | Sequence[AblateTo]) -> tuple[AblateTo, ...]:
    """The replacement values of a census without duplicates: "zero", "mean" or both."""
    choices = tuple(dict.fromkeys((to,) if isinstance(to, str) else to))
    if not choices or any(choice not in get_args(AblateTo) for choice in choices):
        raise UsageError(f"a census puts 'zero', 'mean' or both in a part's place, got {to!r}")
    return choices


@dataclass(frozen=True)
class Change:
    """The change of the scores without a part: higher loss and lower accuracy mean that the part is useful."""

    loss: Interval
    """In nats per output (token, class or answer boundary)."""
    accuracy: Interval
    """Share of outputs whose most probable label is the right one."""
    bleu: float | None = None
    """Only for translators whose translations are scored, as is chrf."""
    chrf: float | None = None

    def to_json(self) -> dict[str, Any]:
        result: dict[str, Any] = {"loss": self.loss.to_json(), "accuracy": self.accuracy.to_json()}
        return result if self.bleu is None else result | {"bleu": self.bleu, "chrf": self.chrf}


@dataclass(frozen=True)
class PartCensus:
    """One part of a model: the change of the scores without it and, for a head, its role."""

    part: str
    """The part's name in interventions: "decoder.1.cross.head.3"."""
    kind: CensusKind
    layer: int | None
    head: int | None
    changes: dict[AblateTo, Change]
    """By the replacement value: "zero" or "mean"."""
    role: HeadRole | None = None

    @property
    def stack(self) -> str:
        """The encoder or decoder it belongs to."""
        return self.part.partition(".")[0]

    def to_json(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "kind": self.kind,
            "layer": self.layer,
            "head": self.head,
            "changes": {to: change.to_json() for to, change in self.changes.items()},
            "role": None if self.role is None else self.role.to_json(),
        }


@dataclass(frozen=True)
class AligningHead:
    """The head that aligned best when a translator was trained, and the one that aligns best by the census."""

    trained: str
    """The best head, or the attention if the mean of its heads aligned best."""
    census: str
    """The head with the largest share of the alignment rules."""

    @property
    def agrees(self) -> bool:
        """Whether both are the same head, or the head of the census is one of the attention's."""
        return self.census == self.trained or self.census.startswith(f"{self.trained}.head.")

    def to_json(self) -> dict[str, Any]:
        return {"trained": self.trained, "census": self.census, "agrees": self.agrees}


@dataclass(frozen=True)
class TranslationBaseline:
    """Scores of the unchanged model's greedy translations."""

    texts: int
    bleu: float
    chrf: float


@dataclass(frozen=True)
class Census:
    """The importance of every part of a model on validation text. `ranked` orders parts, `save` writes pictures."""

    model: str
    task: str
    texts: int
    outputs: int
    """Outputs predicted in these texts."""
    skipped: int
    """Texts left out, because the model cannot read them in one pass or they have no answer."""
    unit: str
    """The kind of output: token, class or answer boundary."""
    to: tuple[AblateTo, ...]
    loss: Interval
    accuracy: Interval
    parts: tuple[PartCensus, ...]
    seconds: float
    aligning_head: AligningHead | None = None
    translations: TranslationBaseline | None = None
    """Only for translators, if requested."""

    def part(self, name: str) -> PartCensus:
        """The entry of a part; UsageError, with the nearest names, if there is none."""
        by_name = {part.part: part for part in self.parts}
        if name not in by_name:
            raise UsageError(f"the census has no part '{name}'; {nearest(name, by_name)}")
        return by_name[name]

    def ranked(self, *, heads_only: bool = False) -> list[PartCensus]:
        """Parts by importance (the rise of the loss without them), the most important first."""
        parts = [part for part in self.parts if part.head is not None or not heads_only]
        return sorted(parts, key=lambda part: -self.importance(part))

    def importance(self, part: PartCensus) -> float:
        """The change in loss without the part, for the first entry of `to` that was measured."""
        return next(iter(part.changes.values())).loss.value

    def to_json(self) -> dict[str, Any]:
        """As JSON values: parts in the order of the model."""
        return {
            "model": self.model,
            "task": self.task,
            "texts": self.texts,
            "outputs": self.outputs,
            "skipped": self.skipped,
            "unit": self.unit,
            "to": list(self.to),
            "loss": self.loss.to_json(),
            "accuracy": self.accuracy.to_json(),
            "parts": [part.to_json() for part in self.parts],
            "aligning_head": None if self.aligning_head is None else self.aligning_head.to_json(),
            "translations": None if self.translations is None else vars(self.translations),
            "seconds": self.seconds,
        }

    def save(self, file: str | Path) -> Path:
        """Write a page that works offline (.html), a picture (.png, .svg, .pdf) or all values (.json)."""
        from heedful.inspection.census.census_page import census_page

        def draw(path: Path, kind: str) -> None:
            from heedful.inspection.census.census_picture import draw_census

            draw_census(self, path, kind)

        return write_result(file, page=lambda: census_page(self), draw=draw, values=self.to_json)

    def __str__(self) -> str:
        from heedful.inspection.census.census_table import census_table

        return census_table(self)

    def _repr_html_(self) -> str:
        from heedful.inspection.census.census_page import census_fragment

        return census_fragment(self)
