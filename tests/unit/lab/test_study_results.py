"""Comparisons of variants, and the outcomes of predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from heedful.errors import UsageError
from heedful.lab.intervals import estimate
from heedful.lab.plotting import Dots, Lines
from heedful.lab.report import shown_measures
from heedful.lab.runner import check_panels
from heedful.lab.study import Claim, Measure, Study, grid
from heedful.lab.study_results import Outcome, Results, TrialResult, estimate_text

ON, OFF = {"switch": True}, {"switch": False}


def study(**changes: Any) -> Study:
    undecided = Claim("nothing is claimed", lambda results: Outcome(None, "no evidence"))
    settings: dict[str, Any] = {
        "name": "switching", "question": "What does the switch do?", "concept": "Q1", "setup": "A switch.",
        "variants": grid(switch=(True, False)), "measure": lambda trial: {"score": 0.0},
        "measures": (Measure("score", "score", "percent"),), "predictions": (undecided,) * 3, "panels": (),
        "would_change": "Another switch.", "budget": {"steps": 1},
    }  # fmt: skip
    return Study(**{**settings, **changes})


def results(on: Sequence[float | None], off: Sequence[float | None]) -> Results:
    switching = study()
    trials = [
        TrialResult(variant, seed, {"score": value}, 1.0)
        for variant, values in zip(switching.variants, (on, off), strict=True)
        for seed, value in enumerate(values, 1)
    ]
    return Results(switching, tuple(trials))


def test_a_clear_difference_is_decided() -> None:
    measured = results([0.9, 0.91, 0.92], [0.1, 0.12, 0.11])
    assert measured.is_more("score", ON, OFF).held is True
    assert measured.is_more("score", OFF, ON).held is False
    assert measured.is_more("score", ON, OFF, by=0.9).held is False


def test_differences_are_paired_by_seed() -> None:
    """Seeds differ by far more than the variants do; within every seed the difference is the same."""
    measured = results([0.1, 0.5, 0.9], [0.05, 0.45, 0.85])
    assert measured.is_more("score", ON, OFF).held is True


def test_overlapping_measurements_are_not_decided() -> None:
    assert results([0.1, 0.9, 0.5], [0.6, 0.2, 0.4]).is_more("score", ON, OFF).held is None


def test_one_seed_decides_nothing() -> None:
    measured = results([0.9], [0.1])
    outcomes = [
        measured.is_more("score", ON, OFF), measured.is_above("score", ON, 0.5), measured.is_below("score", OFF, 0.5),
        measured.is_close("score", ON, ON, within=0.1),
    ]  # fmt: skip
    assert [outcome.held for outcome in outcomes] == [None] * 4


def test_limits_and_closeness() -> None:
    measured = results([0.9, 0.91, 0.92], [0.88, 0.89, 0.9])
    assert measured.is_above("score", ON, 0.8).held is True
    assert measured.is_below("score", ON, 0.8).held is False
    assert measured.is_close("score", ON, OFF, within=0.1).held is True
    assert measured.is_close("score", ON, OFF, within=0.001).held is False


def test_shares_of_zero_on_both_sides_decide_nothing() -> None:
    """If neither model has learned the task, their comparison is not decided."""
    measured = results([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    for outcome in (measured.is_more("score", ON, OFF), measured.is_close("score", ON, OFF, within=0.1)):
        assert outcome.held is None
        assert outcome.evidence.endswith("; neither is above 0")
    assert measured.is_below("score", ON, 0.1).held is True


def test_a_measure_without_values_has_no_column() -> None:
    measured = results([0.5], [0.5])
    extended = replace(measured.study, measures=(*measured.study.measures, Measure("other", "other", optional=True)))
    assert [measure.key for measure in shown_measures(Results(extended, measured.trials))] == ["score"]


def test_a_difference_that_rounds_to_zero_has_no_sign() -> None:
    assert Measure("score", "score", "percent").text(-0.001) == "0%"
    assert Measure("score", "score").text(-0.5) == "−0.50"


def test_conjunction_of_two_outcomes() -> None:
    held, not_held, open_ = (Outcome(verdict, "x") for verdict in (True, False, None))
    assert (held & held).held is True
    assert (held & not_held).held is False
    assert (open_ & not_held).held is False
    assert (held & open_).held is None


def test_evidence_is_a_sentence_with_both_sides_and_the_interval_of_their_difference() -> None:
    measured = results([0.9, 0.9, 0.9], [0.1, 0.1, 0.1])
    assert measured.is_more("score", ON, OFF).evidence == (
        "score is 90% with switch and 10% without switch, a difference of 80 points (in every seed)"
    )
    assert results([0.1, 0.2, 0.3], [0.9, 0.9, 0.9]).is_more("score", ON, OFF).evidence == (
        "score is 20% with switch and 90% without switch, a difference of 70 points (95% interval 45 to 95)"
    )
    assert (
        results([0.5, 0.506, 0.5], [0.5, 0.5, 0.5])
        .is_more("score", ON, OFF)
        .evidence.endswith("a difference of 0 points (95% interval −1 to 1)")
    )


def test_evidence_uses_the_study_s_wording_and_names_shared_factors_once() -> None:
    wide = study(
        variants=grid(switch=(True, False), width=(4, 64)),
        measures=(Measure("score", "score", in_words="the loss in nats"),),
        wording={"switch": {True: "with the lamp", False: "in the dark"}, "width": "of width {}"},
    )
    trials = [TrialResult(variant, seed, {"score": float(seed)}, 1.0) for variant in wide.variants for seed in (1, 2)]
    evidence = Results(wide, tuple(trials)).is_more("score", {**ON, "width": 64}, {**OFF, "width": 64}).evidence
    assert evidence == (
        "the loss in nats, of width 64, is 1.50 with the lamp and 1.50 in the dark, "
        "a difference of 0.00 (in every seed)"
    )
    assert wide.label({**ON, "width": 4}) == "lamp, of width 4"


def test_wording_that_leaves_out_a_value_or_names_no_factor_is_an_error_before_any_trial() -> None:
    with pytest.raises(UsageError, match="wording of 'switch' has no phrase for False"):
        study(wording={"switch": {True: "with it"}})
    with pytest.raises(UsageError, match="wording of 'swich'; did you mean 'switch'"):
        study(wording={"swich": "{}"})


@pytest.mark.parametrize(
    ("panel", "message"),
    [
        (Dots("scores"), "no measure 'scores'"),
        (Lines("score", x="swich"), "did you mean 'switch'"),
        (Lines("score", x="kind"), "kind has no numbers; use Dots"),
        (Lines("score", where=(("colour", 1),)), "known: kind, switch"),
    ],
)
def test_a_panel_that_cannot_be_drawn_is_an_error_before_any_trial(panel: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_panels(study(panels=(panel,), variants=grid(switch=(True, False), kind=("a", "b"))))


def test_numbers_of_any_size_are_readable() -> None:
    measure = Measure("gradient", "gradient", "scientific", 1)
    assert [measure.text(value) for value in (1.46, 0.6, 5.83e-05, 0.0, 2.5e6)] == [
        "1.5", "0.6", "5.8 × 10⁻⁵", "0", "2.5 × 10⁶"
    ]  # fmt: skip
    assert [Measure("share", "share", "percent").difference_text(value) for value in (0.01, -0.02)] == [
        "1 point", "−2 points"
    ]  # fmt: skip


def test_intervals_of_shares_end_at_0_and_100_percent_and_those_without_width_are_left_out() -> None:
    share = Measure("share", "share", "percent")
    texts = [estimate_text(share, estimate(values)) for values in ([0.1, 0.9], [1.0, 1.0], [1.5, 2.5])]
    assert texts == ["50% (0% to 100%)", "100%", "200% (−435% to 835%)"]


def test_an_unknown_variant_or_measure_is_named() -> None:
    with pytest.raises(UsageError, match="no variant with"):
        results([1.0], [1.0]).estimate("score", {"switch": "half"})
    with pytest.raises(UsageError, match="no measure 'scores'"):
        study().find_measure("scores")


def test_a_quick_budget_changes_only_what_the_budget_has() -> None:
    assert study(quick={"steps": 2}).budget_of(quick=True) == {"steps": 2}
    with pytest.raises(UsageError, match="which its budget does not have"):
        study(quick={"stpes": 2})
