"""A study: a question, variants that differ in one factor at a time, predictions, and a measurement function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Literal

import torch

from heedful.errors import UsageError, nearest

if TYPE_CHECKING:
    from heedful.lab.plotting import Panel
    from heedful.lab.study_results import Outcome, Results

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
Factor = str | int | float | bool
"""The value of a factor."""
Measured = float | Sequence[float]
"""A number, or a curve: the same points in every trial."""
Unit = Literal["number", "percent", "scientific"]
Wording = str | Mapping[Factor, str]
"""The wording of a factor's values in sentences: a template, "with {} blocks", or a phrase for each value."""


@dataclass(frozen=True)
class Variant:
    """One combination of the factors of a study."""

    factors: tuple[tuple[str, Factor], ...]

    def __getitem__(self, factor: str) -> Factor:
        return dict(self.factors)[factor]

    def __str__(self) -> str:
        return ", ".join(factor_text(name, value) for name, value in self.factors)

    @property
    def slug(self) -> str:
        """The variant as part of a file's name."""
        return re.sub(r"[^a-z0-9.]+", "-", str(self).lower()).strip("-")

    def matches(self, factors: Mapping[str, Factor]) -> bool:
        """Whether the variant has these values of these factors."""
        values = dict(self.factors)
        return all(values[name] == value for name, value in factors.items())


def value_text(value: Factor) -> str:
    """The value of a factor as displayed."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def listed(parts: Sequence[str]) -> str:
    """Parts of a sentence: "a", "a and b", "a, b and c"."""
    *rest, last = parts or ("",)
    return f"{', '.join(rest)} and {last}" if rest else last


def factor_text(name: str, value: Factor) -> str:
    """A factor and its value as displayed: "layers = 4", "skip on"."""
    title = name.replace("_", " ")
    return f"{title} {value_text(value)}" if isinstance(value, bool) else f"{title} = {value}"


def grid(**factors: Sequence[Factor]) -> tuple[Variant, ...]:
    """Every combination of the factors' values."""
    return tuple(Variant(tuple(zip(factors, values, strict=True))) for values in product(*factors.values()))


@dataclass(frozen=True)
class Trial:
    """One run of a study's `measure`: a variant, a seed, the budget of training and the device."""

    variant: Variant
    seed: int
    budget: Mapping[str, int]
    device: torch.device

    def __getitem__(self, factor: str) -> Factor:
        """The value of a factor."""
        return self.variant[factor]

    def text(self, factor: str) -> str:
        """The value of a factor whose values are strings."""
        return str(self[factor])

    def number(self, factor: str) -> int:
        """The value of a factor whose values are integers."""
        return int(self[factor])


@dataclass(frozen=True)
class Measure:
    """A measured quantity: its key in the result of `measure`, its title, and its number format."""

    key: str
    title: str
    unit: Unit = "number"
    digits: int = 2
    in_words: str = ""
    """Its name in a sentence, in the singular: "the loss in nats"; empty: the title."""
    timed: bool = False
    """Whether it depends on the machine's load: the report then warns if the machine was busy."""
    optional: bool = False
    """Whether trials may omit it, for example without the corpus; reports then omit its column."""

    def text(self, value: float) -> str:
        """The value as displayed."""
        if value != value:  # NaN: no seed had a value
            return "diverged"
        if self.unit == "scientific":
            return _scientific(value, self.digits)
        percent = self.unit == "percent"
        text = f"{100 * value:.{max(0, self.digits - 2)}f}%" if percent else f"{value:,.{self.digits}f}"
        return (
            text.replace("-", "−") if any(digit in text for digit in "123456789") else text.removeprefix("-")
        )  # no −0

    def difference_text(self, value: float) -> str:
        """The difference of two values as displayed: for shares in percentage points."""
        number = self.text(value).removesuffix("%")
        return f"{number} {'point' if number == '1' else 'points'}" if self.unit == "percent" else number


def _scientific(value: float, digits: int) -> str:
    """A number of any size: 0.6, 5.8 × 10⁻⁵."""
    if value == 0 or 0.01 <= abs(value) < 1000:
        return f"{value:.{digits + 1}g}"
    number, _, exponent = f"{value:.{digits}e}".partition("e")
    return f"{number} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}"


@dataclass(frozen=True)
class Claim:
    """A statement written down before the first result, and the comparison that decides it.

    The statement is a clause that can follow "as predicted," and "it was predicted that".
    """

    statement: str
    decide: Callable[[Results], Outcome]


@dataclass(frozen=True)
class Study:
    """The definition of a study, from which, with the measurements, its report is computed.

    `budget` holds the numbers of a full run, `quick` those that a quick run overrides; `measure` reads them from its
    trial. The three predictions are decided by the measurements and become the answer.
    """

    name: str
    question: str
    concept: str
    """The key of the question in docs/concepts.md."""
    setup: str | Callable[[], str]
    """Model, data and training in a few sentences; a function if they depend on the available data."""
    variants: tuple[Variant, ...]
    measure: Callable[[Trial], Mapping[str, Measured]]
    measures: tuple[Measure, ...]
    """The columns of the table."""
    predictions: tuple[Claim, Claim, Claim]
    panels: tuple[Panel, ...]
    would_change: str
    """The results or experiments that would change the answer."""
    budget: Mapping[str, int]
    quick: Mapping[str, int] = field(default_factory=dict)
    curves: tuple[Measure, ...] = ()
    """Measures that are lists of numbers, for plots only."""
    wording: Mapping[str, Wording] = field(default_factory=dict)
    """The wording of factors in sentences and legends."""
    exclusive: bool = False
    """Whether trials measure time or memory, so that they must run one after another."""

    def __post_init__(self) -> None:
        unknown = set(self.quick) - set(self.budget)
        if unknown:
            raise UsageError(f"study '{self.name}': quick changes {sorted(unknown)}, which its budget does not have")
        if len({variant.slug for variant in self.variants}) != len(self.variants):
            raise UsageError(f"study '{self.name}' has two variants of one name")
        self.check_wording()

    def check_wording(self) -> None:
        """UsageError for wording of an unknown factor, or without a phrase for one of its values."""
        for name, wording in self.wording.items():
            if name not in self.factors:
                raise UsageError(f"study '{self.name}': wording of '{name}'; {nearest(name, self.factors)}")
            missing = [] if isinstance(wording, str) else [key for key in self.factors[name] if key not in wording]
            if missing:
                raise UsageError(f"study '{self.name}': wording of '{name}' has no phrase for {missing[0]!r}")

    @property
    def factors(self) -> dict[str, list[Factor]]:
        """Every factor and its values, in their order."""
        values: dict[str, dict[Factor, None]] = {}
        for variant in self.variants:
            for name, value in variant.factors:
                values.setdefault(name, {})[value] = None
        return {name: list(options) for name, options in values.items()}

    def phrases(self, factors: Mapping[str, Factor]) -> list[str]:
        """Values of factors as parts of a sentence: "with 24 blocks", "without skip-connections"."""
        return [self.phrase(name, value) for name, value in factors.items()]

    def label(self, factors: Mapping[str, Factor]) -> str:
        """Values of factors as the label of a line or a row."""
        return ", ".join(re.sub("^(with|for|at) (an? |the )?", "", phrase) for phrase in self.phrases(factors))

    def phrase(self, name: str, value: Factor) -> str:
        """The value of a factor as a part of a sentence."""
        wording, title = self.wording.get(name), name.replace("_", " ")
        if isinstance(wording, str):
            return wording.format(value)
        if wording is not None:
            return wording[value]
        if isinstance(value, bool):
            return f"with {title}" if value else f"without {title}"
        return f"for {value}" if isinstance(value, str) else f"at {title} {value}"

    @property
    def setup_text(self) -> str:
        """The set-up text of the report."""
        return self.setup if isinstance(self.setup, str) else self.setup()

    def budget_of(self, *, quick: bool) -> dict[str, int]:
        """The numbers of a full or a quick run."""
        return {**self.budget, **(self.quick if quick else {})}

    def find_measure(self, key: str) -> Measure:
        """The measure with this key; UsageError for an unknown one."""
        for measure in (*self.measures, *self.curves):
            if measure.key == key:
                return measure
        raise UsageError(f"study '{self.name}' has no measure '{key}'")
