"""The most probable labels of each output: tokens, classes or answer boundaries, with their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from heedful.inspection.text_pass import TextPass
from heedful.shapes import Float


@dataclass(frozen=True)
class Prediction:
    """A label that a model may predict, and its probability."""

    label: int
    text: str
    probability: float

    def to_json(self) -> dict[str, Any]:
        return {"id": self.label, "text": self.text, "probability": self.probability}


@runtime_checkable
class LabelSource(Protocol):
    """The interface of a trained model that predictions need: probabilities from logits, and texts of labels."""

    def output_probabilities(self, logits: Float[Tensor, "outputs labels"]) -> Float[Tensor, "outputs labels"]: ...

    def label_texts(self, text_pass: TextPass, labels: Sequence[int]) -> list[str]: ...


@dataclass(frozen=True)
class RankedOutput:
    """One output's most probable labels, and the probability and rank of its actual label."""

    top: tuple[Prediction, ...]
    probability: float
    rank: int
    """0: the most probable label."""


def rank_outputs(
    source: LabelSource, text_pass: TextPass, logits: Float[Tensor, "outputs labels"], top: int
) -> list[RankedOutput]:
    """Rank the labels of every output of a pass."""
    if not text_pass.outputs:
        return []
    probabilities = source.output_probabilities(logits.float())
    labels = probabilities.new_tensor([output.label for output in text_pass.outputs]).long()[:, None]
    actual = probabilities.gather(1, labels)
    ranks = (probabilities > actual).sum(1).tolist()
    values, indices = probabilities.topk(min(top, probabilities.shape[1]))
    texts = iter(source.label_texts(text_pass, indices.flatten().tolist()))
    rows = zip(indices.tolist(), values.tolist(), actual[:, 0].tolist(), ranks, strict=True)
    return [
        RankedOutput(
            tuple(Prediction(label, next(texts), value) for label, value in zip(ids, row, strict=True)), p, rank
        )
        for ids, row, p, rank in rows
    ]
