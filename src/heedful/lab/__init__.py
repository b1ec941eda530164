"""The lab: reproducible experiments on open questions about transformers.

    from heedful.lab import run_study
    run_study("order", "lab", quick=True)

A study is one file that defines `STUDY`; docs/lab/adding-a-study.md shows one.
"""

from heedful.lab.catalog import all_studies, load_study
from heedful.lab.corpus_task import CorpusTask
from heedful.lab.fitting import Fitted, fit
from heedful.lab.model_checks import check_model
from heedful.lab.model_measures import first_batch, gradient_norms, loss_by_position, token_spread
from heedful.lab.model_probe import Check
from heedful.lab.plotting import Dots, Lines
from heedful.lab.runner import run_study
from heedful.lab.study import Claim, Measure, Study, Trial, Variant, grid
from heedful.lab.study_results import Results
from heedful.lab.toy_tasks import (
    FIRST_SYMBOL,
    TEST_SEED,
    CharacterTask,
    DateTask,
    GeneratedBatches,
    PairTask,
    ReorderTask,
    WhichFirstTask,
    pair_batch,
)

__all__ = [
    "FIRST_SYMBOL", "TEST_SEED", "CharacterTask", "Check", "Claim", "CorpusTask", "DateTask", "Dots", "Fitted",
    "GeneratedBatches", "Lines", "Measure", "PairTask", "ReorderTask", "Results", "Study", "Trial", "Variant",
    "WhichFirstTask", "all_studies", "check_model", "first_batch", "fit", "gradient_norms", "grid", "load_study",
    "loss_by_position", "pair_batch", "run_study", "token_spread",
]  # fmt: skip
