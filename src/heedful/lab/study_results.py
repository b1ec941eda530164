"""The measurements of a study: estimates over seeds, comparisons, and the outcomes of predictions."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heedful.errors import UsageError
from heedful.lab.intervals import Estimate, estimate
from heedful.lab.study import Factor, Measure, Study, Variant, listed

Where = Mapping[str, Factor]
"""A selection of variants by the values of some factors."""


@dataclass(frozen=True)
class TrialResult:
    """The measurements of one variant under one seed."""

    variant: Variant
    seed: int
    measured: Mapping[str, Any]
    """Numbers, or lists of numbers; None replaces non-finite numbers."""
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """Whether a prediction held (None: the intervals do not decide it), and the numbers as evidence."""

    held: bool | None
    evidence: str

    def __and__(self, other: Outcome) -> Outcome:
        """Three-valued logical and: false if either is false, else undecided if either is undecided."""
        verdicts = (self.held, other.held)
        held = False if False in verdicts else None if None in verdicts else True
        return Outcome(held, f"{self.evidence}, and {other.evidence}")


@dataclass(frozen=True)
class Results:
    """The trials of a study."""

    study: Study
    trials: tuple[TrialResult, ...]

    @property
    def seeds(self) -> list[int]:
        return sorted({trial.seed for trial in self.trials})

    @property
    def seconds(self) -> float:
        """Total time of all trials."""
        return sum(trial.seconds for trial in self.trials)

    def values(self, key: str, where: Where, point: int | None = None) -> list[float | None]:
        """The measure of each seed, averaged if several variants match. `point`: index into a curve."""
        per_seed: dict[int, list[float | None]] = {}
        for trial in self.trials:
            if trial.variant.matches(where):
                value = trial.measured.get(key)
                per_seed.setdefault(trial.seed, []).append(value if point is None or value is None else value[point])
        if not per_seed:
            raise UsageError(f"study '{self.study.name}' has no variant with {dict(where)}")
        return [_mean(per_seed[seed]) for seed in sorted(per_seed)]

    def estimate(self, key: str, where: Where, point: int | None = None) -> Estimate:
        """The measure's mean over seeds and its 95% interval."""
        return estimate(self.values(key, where, point))

    def curve(self, key: str, where: Where) -> list[Estimate]:
        """An estimate for every point of a measure that is a list."""
        points = {len(trial.measured[key]) for trial in self.trials if trial.variant.matches(where)}
        return [self.estimate(key, where, point) for point in range(min(points, default=0))]

    def difference(self, key: str, first: Where, second: Where, point: int | None = None) -> Estimate:
        """The first minus the second, paired by seed."""
        pairs = zip(self.values(key, first, point), self.values(key, second, point), strict=True)
        return estimate([None if a is None or b is None else a - b for a, b in pairs])

    def is_more(self, key: str, first: Where, second: Where, *, by: float = 0.0, point: int | None = None) -> Outcome:
        """Whether the first exceeds the second by more than `by`: decided if the interval is on one side of it."""
        held = _exceeds(self.difference(key, first, second, point), by)
        return self.comparison(held, key, first, second, point)

    def is_above(self, key: str, where: Where, limit: float, point: int | None = None) -> Outcome:
        """Whether a measure exceeds a number: decided if its interval is on one side of it."""
        value = self.estimate(key, where, point)
        evidence = f"{self.side(key, where, point)}{_interval_text(self.study.find_measure(key), value)}"
        return Outcome(_exceeds(value, limit), f"{self.subject(key)} is {evidence}")

    def is_below(self, key: str, where: Where, limit: float, point: int | None = None) -> Outcome:
        """The opposite of `is_above`."""
        above = self.is_above(key, where, limit, point)
        return Outcome(None if above.held is None else not above.held, above.evidence)

    def is_close(self, key: str, first: Where, second: Where, *, within: float) -> Outcome:
        """Whether two variants differ by less than `within`: decided if the interval is wholly inside or outside."""
        difference = self.difference(key, first, second)
        inside = -within < difference.low and difference.high < within
        outside = difference.low > within or difference.high < -within
        held = True if inside else False if outside else None
        return self.comparison(held if difference.has_interval else None, key, first, second)

    def comparison(self, held: bool | None, key: str, first: Where, second: Where, point: int | None = None) -> Outcome:
        """The outcome of a comparison, with both sides and their difference as evidence.

        Undecided if a share is 0 on both sides: neither variant has learned the task.
        """
        measure, difference = self.study.find_measure(key), self.difference(key, first, second, point)
        shared = dict(first.items() & second.items())
        sides = (self.side(key, where, point, shared=shared) for where in (first, second))
        evidence = (
            f"{self.subject(key, shared)} is {' and '.join(sides)}, a difference of "
            f"{measure.difference_text(abs(difference.mean))}{_interval_text(measure, difference, is_difference=True)}"
        )
        if measure.unit == "percent" and not any(self.estimate(key, where, point).high for where in (first, second)):
            return Outcome(None, f"{evidence}; neither is above 0")
        return Outcome(held, evidence)

    def subject(self, key: str, shared: Where | None = None) -> str:
        """The measure and the factors that both sides share: "the loss in nats, with 24 blocks,"."""
        measure = self.study.find_measure(key)
        phrases = self.study.phrases(_ordered(self.study, shared or {}))
        return (measure.in_words or measure.title) + (f", {listed(phrases)}," if phrases else "")

    def side(self, key: str, where: Where, point: int | None, shared: Where | None = None) -> str:
        """The mean of some variants with their description: "98% with attention"."""
        named = {name: value for name, value in where.items() if name not in (shared or {})}
        phrases = self.study.phrases(_ordered(self.study, named)) or ["over all variants"]
        value = self.estimate(key, where, point)
        diverged = f" ({value.diverged} diverged)" if value.diverged and value.seeds else ""
        return f"{self.study.find_measure(key).text(value.mean)}{diverged} {listed(phrases)}"

    def best(self, key: str, factor: str, where: Where | None = None, *, lowest: bool = False) -> Factor:
        """The value of a factor with the highest (or lowest) mean of a measure."""
        better = operator.lt if lowest else operator.gt
        chosen, best = None, 0.0
        for value in self.study.factors[factor]:
            mean = self.estimate(key, {**(where or {}), factor: value}).mean
            if chosen is None or better(mean, best):
                chosen, best = value, mean
        assert chosen is not None, "a factor has values"
        return chosen


def _ordered(study: Study, where: Where) -> dict[str, Factor]:
    """Values of factors in the study's order."""
    return {name: where[name] for name in study.factors if name in where}


def _interval_text(measure: Measure, value: Estimate, *, is_difference: bool = False) -> str:
    """The interval of an estimate in a sentence; for a difference, the interval of its absolute value."""
    if not value.has_interval:
        return " (a single seed)"
    if is_difference:
        sign = -1 if value.mean < 0 else 1
        ends = sorted((sign * value.low, sign * value.high))
        low, high = (measure.text(end).removesuffix("%") for end in ends)
    else:
        low, high = (measure.text(end) for end in shown_interval(measure, value))
    return " (in every seed)" if low == high else f" (95% interval {low} to {high})"


def shown_interval(measure: Measure, value: Estimate) -> tuple[float, float]:
    """The interval as displayed: shares are cut off at 0% and 100%."""
    if measure.unit != "percent" or not 0 <= value.mean <= 1:
        return value.low, value.high
    return max(0.0, value.low), min(1.0, value.high)


def estimate_text(measure: Measure, value: Estimate) -> str:
    """The mean and the interval, in the measure's unit; no interval where it has no width in the digits shown."""
    text = measure.text(value.mean)
    if value.has_interval:
        low, high = (measure.text(end) for end in shown_interval(measure, value))
        text += "" if low == high else f" ({low} to {high})"
    return text + (f", {value.diverged} diverged" if value.diverged and value.seeds else "")


def _exceeds(value: Estimate, limit: float) -> bool | None:
    if not value.has_interval:
        return None
    return True if value.low > limit else False if value.high <= limit else None


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None]
    return sum(finite) / len(finite) if len(finite) == len(values) else None
