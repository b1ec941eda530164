"""Faithfulness of attributions: does hiding the highest-scored words change the output more than hiding others?

The words of an input are hidden in the order of an attribution, the most important first (deletion), and shown again
in that order starting from none (insertion); the probability of the output makes a curve over the share of words. A
faithful order makes it fall early, and rise early:

    area = ½ (area of a random order's deletion − the method's) + ½ (the method's insertion − a random order's)

averaged over random orders: 0 for an uninformed order        Samek 2017, Petsiuk 2018, DeYoung 2020
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heedful.config import Config
from heedful.inspection.attribution.explained_output import (
    ExplainedOutput,
    ExplainSource,
    Scores,
    output_log_probabilities,
)
from heedful.inspection.attribution.perturbation import hide_words
from heedful.inspection.census.paired_bootstrap import bootstrap_interval

RANDOM = "random"
"""The name of a random order, measured like a method: its interval should contain 0."""
MEASURABLE = 0.0005
"""Areas below print as 0: where an output is improbable with all its words, its curves are flat in any order."""
Array = npt.NDArray[np.float64]
Order = npt.NDArray[np.int64]
"""Indices into `ExplainedOutput.words`."""


class MethodFaithfulness(Config):
    """The faithfulness of one method, with a 95% interval."""

    method: str
    deletion: float
    """Mean area under the deletion curve: lower is better."""
    insertion: float
    """Mean area under the insertion curve: higher is better."""
    area: float
    """Mean area between the curves and those of random orders: higher is better, 0 is chance."""
    low: float
    high: float

    @property
    def beats_chance(self) -> bool:
        return self.low >= MEASURABLE

    def __str__(self) -> str:
        return f"{self.area:+z.3f} ({self.low:+z.3f} to {self.high:+z.3f})"


class FaithfulnessTable(Config):
    """Faithfulness of several methods on the same outputs; stored as faithfulness.json."""

    methods: tuple[MethodFaithfulness, ...]
    """Sorted by decreasing faithfulness."""
    perturbation: str
    """How words were hidden: removed, or replaced by [MASK]."""
    texts: int
    outputs: int
    resampled: str
    """The unit of the bootstrap: texts, outputs of one text, or random orders for one output."""

    def of(self, method: str) -> MethodFaithfulness | None:
        return next((row for row in self.methods if row.method == method), None)

    @property
    def best(self) -> MethodFaithfulness | None:
        """The most faithful method; None if none is better than a random order."""
        return next((row for row in self.methods if row.beats_chance and row.method != RANDOM), None)

    def __str__(self) -> str:
        width = max(len(row.method) for row in self.methods)
        lines = [
            f"{'method':<{width}}  deletion  insertion  area between and 95% interval",
            *(f"{m.method:<{width}}  {m.deletion:8.3f}  {m.insertion:9.3f}  {m}" for m in self.methods),
            f"{self.outputs} outputs of {self.texts} texts; hidden words are {self.perturbation}; intervals over "
            f"{self.resampled}",
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class CurveSettings:
    """The resolution of the curves."""

    random_orders: int = 10
    """Number of random orders that a method is compared with."""
    points: int = 10
    """Points of a curve after the first; words of longer inputs are hidden several at a time."""


FINE = CurveSettings()


@dataclass(frozen=True)
class OutputCurves:
    """Probability of one output while words are hidden and shown, in the order of each method and in random orders."""

    curves: dict[str, Array]
    """For each method, (deletion, insertion) × points."""
    random: Array
    """Random orders × (deletion, insertion) × points."""
    fractions: Array
    """The share of words hidden or shown at each point."""

    def areas(self, method: str) -> Array:
        """The areas under the deletion and the insertion curve of a method."""
        return self._area(self.curves[method])

    def areas_between(self, method: str) -> Array:
        """The area between the method's curves and those of each random order."""
        difference = self._area(self.random) - self.areas(method)
        return (difference[:, 0] - difference[:, 1]) / 2

    def _area(self, curves: Array) -> Array:
        return np.asarray(np.trapezoid(curves, self.fractions, axis=-1))


def measure_curves(
    source: ExplainSource,
    outputs: Sequence[ExplainedOutput],
    scores: Mapping[str, Sequence[Scores]],
    seed: int = 0,
    settings: CurveSettings = FINE,
) -> list[OutputCurves]:
    """The curves of each output, for all methods and random orders, in batches."""
    orders: list[Order] = []
    for index, output in enumerate(outputs):
        # Outputs of a text with the same words share random orders, so that an encoder-decoder scores them in one pass.
        generator = np.random.default_rng([seed, len(output.words)])
        random = [generator.permutation(len(output.words)) for _ in range(settings.random_orders + 1)]
        # Ties are in random order: a method that gives every word the same score must not profit from word order.
        ties = random[-1]
        ranked = [ties[np.argsort(-rows[index][ties], kind="stable")] for rows in scores.values()]
        orders.append(np.stack([*ranked, *random]))
    passes = [
        hide_words(source, output, hidden)
        for output, table in zip(outputs, orders, strict=True)
        for order in table
        for hidden in _hidden_sets(order, settings.points)
    ]
    probabilities = iter(np.exp(output_log_probabilities(source, passes)).tolist())
    results = []
    for table in orders:
        points = _points(table.shape[1], settings.points)
        curves = np.array([[[next(probabilities) for _ in points] for _ in range(2)] for _ in table])
        named = dict(zip([*scores, RANDOM], [*curves[: len(scores)], curves[-1]], strict=True))
        results.append(OutputCurves(named, curves[len(scores) : -1], points / table.shape[1]))
    return results


def _points(words: int, most: int) -> Order:
    """The number of words hidden or shown at each point of a curve."""
    return np.unique(np.linspace(0, words, min(words, most) + 1).round().astype(np.int64))


def _hidden_sets(order: Order, most: int) -> list[list[int]]:
    """The words hidden at each point: of the deletion curve, then of the insertion curve."""
    points, words = _points(len(order), most).tolist(), order.tolist()
    return [words[:count] for count in points] + [words[count:] for count in points]


def summarize(curves: Sequence[Sequence[OutputCurves]], perturbation: str, *, seed: int = 0) -> FaithfulnessTable:
    """The faithfulness of each method over the outputs of each text, with bootstrap intervals.

    Outputs of one text depend on each other, so texts are resampled; for a single text its outputs are resampled, for
    a single output the random orders.
    """
    texts = [text for text in curves if text]
    outputs = sum(map(len, texts))
    resampled = "texts" if len(texts) > 1 else "outputs" if outputs > 1 else "random orders"
    rows = []
    for method in texts[0][0].curves:
        between = [np.stack([output.areas_between(method) for output in text]) for text in texts]
        if resampled == "texts":
            samples = np.array([text.mean() for text in between])
        else:
            samples = between[0].mean(1) if outputs > 1 else between[0][0]
        deletion, insertion = np.mean(
            [np.mean([output.areas(method) for output in text], axis=0) for text in texts], axis=0
        ).tolist()
        low, high = bootstrap_interval(samples, seed=seed)
        rows.append(
            MethodFaithfulness(
                method=method, deletion=deletion, insertion=insertion, area=float(samples.mean()), low=low, high=high
            )
        )
    rows.sort(key=lambda row: -row.area)
    return FaithfulnessTable(
        methods=tuple(rows), perturbation=perturbation, texts=len(texts), outputs=outputs, resampled=resampled
    )
