"""The time limit of a run (`--time`): what each phase may take of it, from the command to the report.

    before training    start-up, reading, vocabulary, encoding, dry run    already over when the steps are chosen
    training           as many steps as fit, with their evaluations        fixed when training begins
    after training     calibration, on texts fixed when training begins;   forecast from a few texts
                       scores, on as many validation texts as fit,
                       or test scores, on all test texts;
                       report

The number of steps cannot follow the clock, since the learning-rate schedule depends on it and a resumed run must
repeat it. If training takes longer than forecast, the final scores are computed on fewer texts, and the card says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from heedful.training.forecast.final_costs import REPORT_SECONDS, FinalCosts

CALIBRATION_TEXTS = 1000
"""Validation texts that calibration is fitted on, if there is time."""
FEWEST_TEXTS = 50
"""Texts that calibration and final scores are given however short the time is."""
CALIBRATION_SHARE = SCORES_SHARE = 0.1
"""Largest shares of the time limit for calibration and for final scores."""
RESERVE = 0.02
"""Share of the time limit left for the error of the forecast."""


@dataclass(frozen=True)
class TimeAllocation:
    """Seconds for training and its evaluations, and what the phases after it work on and take."""

    training: float
    calibration_texts: int
    final_phases: dict[str, float]

    @classmethod
    def within(
        cls, limit: float | None, elapsed: float, costs: FinalCosts, scored_texts: int, test_texts: int | None = None
    ) -> TimeAllocation:
        """Divide a time limit of which `elapsed` seconds are over; without one, every text is used.

        Test texts are all scored, in the place of validation texts.
        """
        calibration_texts, scored = CALIBRATION_TEXTS, scored_texts
        if limit is not None:
            least, most = FEWEST_TEXTS, CALIBRATION_TEXTS
            calibration_texts = costs.calibration.texts_within(CALIBRATION_SHARE * limit, least=least, most=most)
            scored = costs.scores.texts_within(SCORES_SHARE * limit, least=min(least, scored), most=scored)
        phases = {
            "calibration": costs.calibration.seconds(min(calibration_texts, scored_texts)),
            **(
                {"scores": costs.scores.seconds(scored)}
                if test_texts is None
                else {"test scores": costs.scores.seconds(test_texts)}
            ),
            "report": REPORT_SECONDS,
        }
        left = 0.0 if limit is None else (1 - RESERVE) * limit - elapsed - sum(phases.values())
        return cls(max(0.0, left), calibration_texts, phases)
